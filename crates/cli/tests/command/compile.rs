//! `compile` writes Program files that run without the model.

use std::process::Stdio;

use serde_json::json;

use crate::{Bench, models, names_in};

#[test]
fn a_program_gives_what_the_model_gives() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let compiled = bench.json("compile m.onnx -o p --dim rows=4 --explain");
    assert_eq!((&compiled["schema"], &compiled["bucket"]), (&json!("precast.compile/1"), &json!({ "rows": 4 })));
    assert!(compiled["explain"][0]["kernel"].is_string());
    assert_eq!(bench.names(), ["m.onnx", "p", "p.constants"]);
    let of_model = bench.json("run m.onnx --dim rows=4 --seed 7");
    std::fs::remove_file(bench.path("m.onnx")).unwrap();
    assert_eq!(bench.json("run p --seed 7")["outputs"], of_model["outputs"]);
}

#[test]
fn sizes_nobody_gave_are_announced_with_their_flags() {
    let bench = Bench::with_model("m.onnx", &models::embedding());
    let outcome = bench.run("compile m.onnx -o p");
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("guessed: --dim n=1 --dim length=64\n"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("length=64,n=1"), "{}", outcome.stdout);
    let quiet = bench.run("compile m.onnx -o p --quiet --shapes ids:2x3,mask:2x3");
    assert_eq!((quiet.exit, quiet.stderr.as_str()), (0, ""));
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("compile m.onnx -o a");
    bench.json("compile m.onnx -o b");
    assert_eq!(bench.read("a"), bench.read("b"));
    assert_eq!(names_in(&bench.path("a.constants")), names_in(&bench.path("b.constants")));
}

/// H23: each process writes under a name of its own, and whoever is last leaves a whole file.
#[test]
fn thirty_two_processes_that_save_one_program_at_once_leave_it_whole() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("compile m.onnx -o alone");
    let children: Vec<_> =
        (0..32).map(|_| bench.command("compile m.onnx -o p --quiet").stdout(Stdio::null()).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(bench.names(), ["alone", "alone.constants", "m.onnx", "p", "p.constants"]);
    assert_eq!(bench.read("p"), bench.read("alone"));
    assert_eq!(names_in(&bench.path("p.constants")), names_in(&bench.path("alone.constants")));
    bench.json("run p");
}

#[test]
fn a_model_that_is_not_one_program_is_refused_and_leaves_nothing() {
    let bench = Bench::with_model("m.onnx", &models::positions());
    let outcome = bench.run("compile m.onnx -o p");
    assert_eq!(outcome.exit, 3);
    assert!(outcome.stderr.contains("error: the model is not one Program"), "{}", outcome.stderr);
    assert_eq!(bench.names(), ["m.onnx"]);
}

#[test]
fn every_damaged_byte_of_a_program_is_an_integrity_error() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("compile m.onnx -o p");
    let good = bench.read("p");
    for position in [9, 100, good.len() / 2, good.len() - 1] {
        let mut damaged = good.clone();
        damaged[position] ^= 1;
        bench.write("p", &damaged);
        for verb in ["run", "perf", "inspect"] {
            let outcome = bench.run(&format!("{verb} p"));
            assert_eq!(outcome.exit, 6, "{verb}, byte {position}: {}", outcome.stderr);
        }
    }
    bench.write("p", &good[..good.len() - 1]);
    assert_eq!(bench.run("run p").exit, 6);
}

#[test]
fn a_damaged_or_missing_constant_is_an_integrity_error() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("compile m.onnx -o p");
    let folder = bench.path("p.constants");
    let file = folder.join(&names_in(&folder)[0]);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(bench.run("run p").exit, 6);
    std::fs::remove_file(file).unwrap();
    let outcome = bench.run("run p --json");
    assert_eq!((outcome.exit, &outcome.json()["kind"]), (6, &json!("integrity")));
}

#[test]
fn a_program_for_another_cpu_is_a_device_error() {
    let Some(isa) = precast::Isa::ALL.into_iter().find(|isa| !isa.is_supported()) else {
        return;
    };
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json(&format!("compile m.onnx -o p --isa {}", isa.name()));
    assert_eq!(bench.run("run p").exit, 5);
}

#[test]
fn a_folder_or_device_is_not_written_over() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    std::fs::create_dir(bench.path("folder")).unwrap();
    let outcome = bench.run("compile m.onnx --dim rows=2 -o folder");
    assert_eq!(outcome.exit, 2);
    assert!(outcome.stderr.contains("not a plain file"), "{}", outcome.stderr);
    assert!(!bench.names().contains(&"folder.constants".to_string()));
}
