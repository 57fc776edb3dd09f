from setuptools import find_packages, setup

package_name = 'rog_core'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    package_data={'rog_core.cuda': ['*.cu', '*.cuh']},
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numba', 'numpy', 'torch>=2.4', 'typing_extensions>=4.4'],
    extras_require={
        'cuda': ['cupy-cuda12x'],  # CUDA kernels of the codecs, rog_core/cuda
        'test': ['pytest', 'hypothesis', 'nvidia-cuda-nvrtc-cu12']},
    zip_safe=False,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description="ROG's protocol and mathematics of training, without any I/O.",
    license='Apache-2.0',
)
