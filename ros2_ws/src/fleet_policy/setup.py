from setuptools import find_packages, setup

package_name = 'fleet_policy'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numpy', 'pillow', 'safetensors', 'torch>=2.4'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='A policy on a robot: chunks of actions over bad Wi-Fi that never starve.',
    license='Apache-2.0',
    entry_points={'console_scripts': ['policy = fleet_policy.main:main',
                                      'mock_robot = fleet_policy.mock_robot:main',
                                      'to_lerobot = fleet_policy.to_lerobot:main']},
)
