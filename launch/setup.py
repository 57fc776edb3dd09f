from glob import glob

from setuptools import setup

package_name = 'rog_bringup'

setup(
    name=package_name,
    version='0.5.0',
    packages=[package_name],
    package_data={package_name: ['fleets/*.yaml']},
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml', 'diagnostics.yaml', *glob('*.launch.py')]),
    ],
    install_requires=['torch>=2.4'],
    extras_require={'test': ['pytest']},
    zip_safe=False,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='Fleet files of ROG and the launch files that start them.',
    license='Apache-2.0',
)
