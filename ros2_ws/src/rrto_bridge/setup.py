from setuptools import find_packages, setup

package_name = 'rrto_bridge'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    package_data={package_name: ['bootstrap/*.py']},
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
        ('lib/' + package_name, ['scripts/rrto_server', 'scripts/rrto_bridge']),
    ],
    install_requires=['torch>=2.4'],
    extras_require={'test': ['pytest', 'hypothesis', 'safetensors', 'torchvision']},
    zip_safe=False,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='RRTO: an unmodified PyTorch program uses a GPU server, in one round trip.',
    license='Apache-2.0',
    entry_points={'console_scripts': [
        'rrto = rrto_bridge.cli.main:main',
        'rrto_server = rrto_bridge.server.main:server_main',
    ]},
)
