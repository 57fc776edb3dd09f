from setuptools import find_packages, setup

package_name = 'rog_tasks'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numpy', 'rosbags', 'safetensors', 'torch>=2.4'],
    extras_require={'digits': ['scikit-learn'], 'test': ['pytest', 'hypothesis', 'scikit-learn']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='What a fleet trains: tasks, data sets, sources of images, shards and shifts.',
    license='Apache-2.0',
)
