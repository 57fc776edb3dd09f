from setuptools import find_packages, setup

package_name = 'rog_worker'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['torch>=2.4'],
    extras_require={'test': ['pytest']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='Worker node of ROG: data, gradient, push and pull.',
    license='Apache-2.0',
    entry_points={'console_scripts': ['worker = rog_worker.main:main']},
)
