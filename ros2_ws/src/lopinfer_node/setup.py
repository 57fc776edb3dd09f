from setuptools import find_packages, setup

package_name = 'lopinfer_node'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
        ('lib/' + package_name, ['scripts/lopinfer_server', 'scripts/lopinfer_client']),
    ],
    install_requires=['torch>=2.4', 'numpy', 'numba', 'scipy', 'safetensors', 'rich'],
    extras_require={'pictures': ['matplotlib'],
                    'test': ['pytest', 'hypothesis', 'matplotlib', 'ortools', 'torchvision']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='LOPInfer: robot and server share one inference, operator by operator.',
    license='Apache-2.0',
    entry_points={'console_scripts': [
        'lopinfer = lopinfer_node.cli.main:main',
        'lopinfer_server = lopinfer_node.nodes:server_main',
        'lopinfer_client = lopinfer_node.nodes:client_main',
    ]},
)
