from setuptools import find_packages, setup

package_name = 'fleet_emulation'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numpy', 'safetensors'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='A fleet of real nodes on one machine: emulated radio links, injected faults.',
    license='Apache-2.0',
    entry_points={
        'rog.verbs': ['chaos = fleet_emulation.chaos:add_to'],
        'rog.emulation': ['check_rights = fleet_emulation.network:check_rights',
                          'fleet = fleet_emulation.fleet:emulated_fleet'],
    },
)
