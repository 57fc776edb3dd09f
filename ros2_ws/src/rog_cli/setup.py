from setuptools import find_packages, setup

package_name = 'rog_cli'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
        ('lib/' + package_name, ['scripts/rog', 'scripts/fleet']),
    ],
    install_requires=['numpy', 'rich', 'rosbags', 'safetensors', 'torch>=2.4'],
    extras_require={'test': ['pytest']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='The rog command: start a fleet, watch it, plot its runs.',
    license='Apache-2.0',
    entry_points={'console_scripts': ['rog = rog_cli.main:main',
                                      'fleet = rog_cli.fleet_main:main']},
)
