//! Wrong arguments, files and models: the code, and a message that names the thing.

use serde_json::json;

use crate::{Bench, models};

#[test]
fn each_error_has_its_code_and_names_the_thing() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.write("broken.onnx", b"\xff\xff\xff\xff");
    bench.write("empty.onnx", b"");
    bench.write("short.npy", b"\x93NUMPY\x01\x00");
    bench.write("x.txt", b"1 2 3");
    bench.write("unsupported.onnx", &models::encode(&models::unsupported()));
    bench.write("escaping.onnx", &models::encode(&models::escaping()));
    let cases = [
        ("run", 2, "required arguments"),
        ("fly m.onnx", 2, "unrecognized subcommand"),
        ("run m.onnx --frob", 2, "--frob"),
        ("run m.onnx --quiet --verbose", 2, "cannot be used with"),
        ("run absent.onnx", 2, "absent.onnx"),
        ("run broken.onnx", 3, "not a valid ONNX"),
        ("run empty.onnx", 3, "not a valid ONNX"),
        ("run unsupported.onnx", 3, "Frobnicate"),
        ("run escaping.onnx", 8, "../secret"),
        ("check escaping.onnx", 8, "../secret"),
        ("run m.onnx --input y=zeros", 2, "there is no input 'y'; there are 'x'"),
        ("run m.onnx --input x=absent.npy", 2, "absent.npy"),
        ("run m.onnx --input x=short.npy", 2, "it ends inside its header"),
        ("run m.onnx --input x=x.txt", 2, ".npy, .npz or .pb is expected"),
        ("run m.onnx --input x", 2, "NAME=FILE"),
        ("run m.onnx --input x=ones --input x=zeros", 2, "given twice"),
        ("run m.onnx --dim row=2", 2, "Did you mean 'rows'?"),
        ("run m.onnx --dim rows=2 --shape x:3x3", 2, "the dim 'rows' 3; it is 2 already"),
        ("run m.onnx --shape x:1x4", 2, "has 4 where the model declares 3"),
        ("run m.onnx --dim rows=-2", 2, "is not a size"),
        ("run m.onnx --dim rows=4000000000", 8, "refused"),
        ("run m.onnx --output y.txt", 2, "FILE.npz or a folder"),
        ("run m.onnx --output absent/y.npz", 2, "cannot write 'absent/y.npz'"),
        ("run m.onnx --isa avx1024", 2, "portable, avx2, avx512, avx512-vnni"),
        ("run m.onnx --numerics loose", 2, "invalid value 'loose' for '--numerics <NUMERICS>'"),
        ("run m.onnx --numerics loose", 2, "[possible values: default, strict]"),
        ("run m.onnx --numerics strict --bf16", 2, "strict numerics round as the model is written"),
        ("run m.onnx --fast-math gelu,flush", 2, "'flush' is no fast-math rewrite; there are gelu, zero, log-exp"),
        ("run m.onnx --fast-math all --numerics strict", 2, "fast-math gelu,zero,log-exp,pow-sqrt does not"),
        ("run m.onnx --int8 --numerics strict", 2, "int8 weights do not"),
        ("run m.onnx --int8 --bf16", 2, "cannot be used with"),
        ("run m.onnx --device cuda:99", 5, "cuda"),
        ("run m.onnx --device cpi", 2, "Did you mean 'cpu'?"),
        ("run m.onnx --device cuda:0,cuda:1", 2, "'run' runs one request at a time, on one device"),
        ("perf m.onnx --max-batch 4 --device cuda:0,hip:0", 2, "are of different kinds"),
        ("perf m.onnx --max-batch 4 --device cuda:1,cuda:1", 2, "is named twice"),
        ("verify m.onnx --against tea-leaves", 2, "reference, onnxruntime or FILE.npz"),
        ("verify m.onnx --rel 1 --atol 1", 2, "cannot be used with"),
        ("perf m.onnx --duration=-1", 2, "not negative"),
        ("compile m.onnx", 2, "--output"),
        ("compile m.onnx -o absent/p", 2, "cannot write 'absent/p'"),
        ("inspect m.onnx --stage fused", 2, "--text"),
    ];
    for (arguments, exit, message) in cases {
        let outcome = bench.run(arguments);
        assert_eq!(outcome.exit, exit, "{arguments}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(message), "{arguments}: {}", outcome.stderr);
        // A verdict is a result, errors are not.
        assert!(outcome.stdout.is_empty(), "{arguments}: {}", outcome.stdout);
    }
}

#[test]
fn json_errors_are_one_line_with_a_kind() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    for (arguments, kind) in
        [("run absent.onnx", "usage"), ("run m.onnx --dim rows=4000000000", "limit"), ("run", "usage")]
    {
        let outcome = bench.run(&format!("{arguments} --json"));
        let json = outcome.json();
        assert_eq!((&json["schema"], &json["kind"]), (&json!("precast.error/1"), &json!(kind)), "{arguments}");
        assert_eq!(json["exit"], json!(outcome.exit));
        assert!(json["error"].as_str().is_some_and(|text| !text.is_empty()));
    }
}

#[test]
fn an_alias_of_a_device_is_announced() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let outcome = bench.run("check m.onnx --device CPUExecutionProvider");
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (0, "notice: 'CPUExecutionProvider' is read as 'cpu'\n"));
}

/// H33: a device that is not there is an error, and never another device in silence.
#[test]
fn a_device_that_is_not_there_is_never_replaced() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    for (device, exit) in [("cuda:99", 5), ("hip:99", 5), ("cdua:0", 2), ("gpu0", 2)] {
        for verb in ["run", "perf", "verify", "compile -o p"] {
            let outcome = bench.run(&format!("{verb} m.onnx --device {device}"));
            assert_eq!(outcome.exit, exit, "{verb} on {device}: {}", outcome.stderr);
            assert!(outcome.stdout.is_empty(), "{verb} on {device}: {}", outcome.stdout);
        }
    }
    assert_eq!(bench.names(), ["m.onnx"]);
}

#[test]
fn help_and_version_are_results() {
    let bench = Bench::new();
    for arguments in ["--help", "--version", "perf --help"] {
        let outcome = bench.run(arguments);
        assert_eq!((outcome.exit, outcome.stderr.as_str()), (0, ""), "{arguments}");
        assert!(!outcome.stdout.is_empty());
    }
}
