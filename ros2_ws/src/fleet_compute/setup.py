from setuptools import find_packages, setup

package_name = 'fleet_compute'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['backports.zstd; python_version < "3.14"', 'numpy', 'pillow', 'torch>=2.4'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description="What a GPU machine computes for robots: programs of PyTorch's operators, and "
                'whose turn it is.',
    license='Apache-2.0',
)
