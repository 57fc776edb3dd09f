"""An error in the nodes' settings names the parameter whose file or folder cannot be used."""

import pytest
import torch
from fleet_env.errors import SettingError
from lopinfer_node import parameters
from lopinfer_node.errors import ModelError
from lopinfer_node.model import zoo
from lopinfer_node.model.pictures import traced_of_images
from lopinfer_node.parameters import ClientSettings, ServerSettings
from safetensors.torch import save_file


def test_a_folder_of_models_is_made_or_the_parameter_is_named(tmp_path):
    folder = tmp_path / 'a' / 'b'
    assert ServerSettings(directory=str(folder)).make_directory() == folder and folder.is_dir()
    (tmp_path / 'file').touch()
    with pytest.raises(SettingError, match='parameter directory .*/file.* File exists'):
        ServerSettings(directory=str(tmp_path / 'file')).make_directory()


def test_a_recording_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SettingError, match='parameter recording .* Is a directory'):
        ClientSettings(recording=str(tmp_path)).open_recording()


def test_a_server_may_have_several_devices_of_one_kind(monkeypatch):
    assert ServerSettings(device='cpu,cpu').chosen_devices() == 'cpu,cpu'
    with pytest.raises(SettingError, match="'cuda:98' cannot be used here"):
        ServerSettings(device='cuda:98,cuda:99').chosen_devices()
    monkeypatch.setattr(parameters, 'torch_device', torch.device)
    with pytest.raises(SettingError, match="devices of one kind, .* got 'cpu,cuda:1'"):
        ServerSettings(device='cpu,cuda:1').chosen_devices()
    for wrong in 'cpu,', 'cpu;cpu', 'tpu':
        with pytest.raises(ValueError, match='device'):
            ServerSettings(device=wrong)
    with pytest.raises(ValueError, match='device'):
        ClientSettings(device='cpu,cpu')


def test_the_weights_of_the_server_belong_to_its_models_in_their_order():
    settings = ServerSettings(models='resnet18, a.b:c,vgg11', weights=',runs/one')
    assert settings.chosen_models() == [('resnet18', ''), ('a.b:c', 'runs/one'), ('vgg11', '')]
    assert ServerSettings().chosen_models() == []
    with pytest.raises(SettingError, match='weights for the 1 models .* got 2'):
        ServerSettings(models='resnet18', weights='a,b').chosen_models()


def test_a_model_has_the_weights_that_a_fleet_has_learned(tmp_path):
    learned = zoo.load('resnet18')
    with torch.no_grad():
        for value in learned.state_dict().values():
            value.copy_(value * 2)   # also the statistics of batch normalisation
    (tmp_path / 'run/models/1').mkdir(parents=True)
    save_file(learned.state_dict(), tmp_path / 'run/models/1/model.safetensors')
    run = str(tmp_path / 'run')
    one, other = zoo.load('resnet18', weights=run).state_dict(), learned.state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    # Robot and server know the model again by this digest.
    digests = {traced_of_images('resnet18', (32, 32), weights=place).digest
               for place in (run, f'{run}/models/1', '')}
    assert len(digests) == 2
    with pytest.raises(ModelError, match="mobilenet_v3_small: .*run.* lacks 'features.0.0.weight'"
                                         '.*package.module:factory'):
        zoo.load('mobilenet_v3_small', weights=run)
