//! `--tune` measures tactics, keeps them in the cache, and compiles with them; no time is judged here.

use serde_json::{Value, json};

use crate::{Bench, models};

fn bench() -> Bench {
    Bench::with_model("m.onnx", &models::convolution())
}

fn tactic(json: &Value) -> String {
    json["explain"][0]["tactic"].as_str().unwrap().to_string()
}

/// H31: one tuning table gives one Program, in whatever folder and process it is compiled.
#[test]
fn one_tuning_table_gives_the_same_bytes_in_another_folder() {
    let (here, there) = (bench(), bench());
    let tuned = tactic(&here.json("compile m.onnx -o a --explain --tune full --cache c"));
    let copied = std::process::Command::new("cp").arg("-r").args([here.path("c"), there.path("c")]).status().unwrap();
    assert!(copied.success());
    assert_eq!(tactic(&there.json("compile m.onnx -o a --explain --cache c")), tuned);
    assert_eq!(here.read("a"), there.read("a"));
}

#[test]
fn a_tuned_program_says_so_and_a_plain_compile_uses_what_was_measured() {
    let bench = bench();
    assert_eq!(tactic(&bench.json("compile m.onnx -o a --explain")), "(cost model)");
    let tuned = tactic(&bench.json("compile m.onnx -o b --explain --tune full --cache c"));
    assert!(tuned.starts_with("(tuned: "), "{tuned}");
    assert_eq!(tactic(&bench.json("compile m.onnx -o d --explain --cache c")), tuned);
    assert_eq!(bench.read("b"), bench.read("d"));
    assert!(bench.run("inspect b").stdout.contains(&tuned));
    let again = bench.json("compile m.onnx -o e --explain --tune full --cache c");
    assert_eq!(tactic(&again), tuned, "what is measured is not measured again");
    assert_eq!(tactic(&bench.json("compile m.onnx -o f --explain --tune quick --tune-seconds 0")), "(cost model)");
    let listed = bench.json("cache ls c");
    assert_eq!(listed["tuning_records"], json!(1));
    assert!(listed["bytes"]["tuning"].as_u64().unwrap() > 0);
    bench.json("run m.onnx --tune quick --cache c");
    assert_eq!(bench.run("run b --tune quick").exit, 2);
    assert_eq!(bench.run("compile m.onnx -o b --tune slow").exit, 2);
}

#[test]
fn a_damaged_tuning_file_is_found_and_only_costs_time() {
    let bench = bench();
    bench.json("compile m.onnx -o a --tune quick --cache c");
    assert_eq!(bench.json("cache verify c")["problems"], json!([]));
    let path = bench.path("c/tuning/tactics.1.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("winograd", "vinograd")).unwrap();
    assert_eq!(bench.run("cache verify c").exit, 6);
    assert_eq!(tactic(&bench.json("compile m.onnx -o a --explain --cache c")), "(cost model)");
}

#[test]
fn a_tuned_program_is_another_entry_of_the_cache_and_why_names_the_field() {
    let bench = bench();
    bench.json("cache warm c m.onnx --max-batch 2");
    assert_eq!(bench.json("cache why c m.onnx --max-batch 2")["hits"], json!(2));
    let warmed = bench.json("cache warm c m.onnx --max-batch 2 --tune full");
    assert_eq!(warmed["compiles"], json!(2), "{warmed}");
    assert_eq!(bench.json("cache why c m.onnx --max-batch 2")["hits"], json!(2));
    assert_eq!(bench.json("cache warm c m.onnx --max-batch 2")["compiles"], json!(0));
    let perf = "perf m.onnx --max-batch 2 --duration 0 --iterations 3 --cache c --tune full";
    assert_eq!(bench.json(perf)["compiles"], json!(0));
    // Another measurement is another record: the same model misses by that alone.
    let path = bench.path("c/tuning/tactics.1.txt");
    std::fs::remove_file(&path).unwrap();
    bench.json("compile m.onnx -o p --dim n=1 --tune full --cache c");
    let why = bench.json("cache why c m.onnx --max-batch 2");
    assert_eq!(why["hits"], json!(0));
    let differing = why["buckets"][0]["nearest"]["differing"].as_array().unwrap();
    let fields: Vec<&str> = differing.iter().map(|diff| diff["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["tuning"]);
    let key = bench.json("cache ls c")["entries"][0]["key"].as_str().unwrap()[..16].to_string();
    assert!(bench.json(&format!("cache show c {key}"))["tuned_steps"].is_u64());
}
