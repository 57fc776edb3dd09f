from setuptools import find_packages, setup

package_name = 'rog_sim'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['matplotlib', 'numpy', 'safetensors', 'torch>=2.4'],
    extras_require={'cluster': ['distributed'], 'test': ['pytest', 'hypothesis', 'distributed']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='The virtual-time fleet: every synchronisation method on any link, compared.',
    license='Apache-2.0',
)
