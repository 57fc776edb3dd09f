"""An error in the nodes' settings names the parameter whose file or folder cannot be used."""

import pytest
from fleet_env.errors import SettingError
from lopinfer_node.parameters import ClientSettings, ServerSettings


def test_a_folder_of_models_is_made_or_the_parameter_is_named(tmp_path):
    folder = tmp_path / 'a' / 'b'
    assert ServerSettings(directory=str(folder)).make_directory() == folder and folder.is_dir()
    (tmp_path / 'file').touch()
    with pytest.raises(SettingError, match='parameter directory .*/file.* File exists'):
        ServerSettings(directory=str(tmp_path / 'file')).make_directory()


def test_a_recording_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SettingError, match='parameter recording .* Is a directory'):
        ClientSettings(recording=str(tmp_path)).open_recording()
