from setuptools import find_packages, setup

package_name = 'rog_ros'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numpy'],
    extras_require={'test': ['pytest']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description="What ROG's nodes share: QoS, message conversion, parameters, emulated links.",
    license='Apache-2.0',
)
