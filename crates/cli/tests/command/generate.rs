//! `generate`, `chat` and `bench` on a tiny model folder.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::Bench;

/// A folder of the tests of text generation.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data").join(name)
}

fn run(bench: &Bench, verb: &str, name: &str, arguments: &str) -> crate::Outcome {
    bench.run(&format!("{verb} {} {arguments}", folder(name).display()))
}

#[test]
fn tokens_and_texts_are_prompts() {
    let bench = Bench::new();
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5,6,7,8 -n 6 --json --quiet");
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["answers"][0]["tokens"], serde_json::json!([86, 282, 221, 15, 180, 176]));
    assert_eq!((json["schema"].as_str(), json["device"].as_str()), (Some("precast.generate/1"), Some("cpu")));
    let outcome = run(&bench, "generate", "llama-fp32", "-p hello -n 3 --stop hello --quiet");
    assert_eq!(outcome.exit, 0);
    assert!(outcome.stdout.ends_with('\n'));
}

#[test]
fn batches_and_beams_print_a_line_an_answer() {
    let bench = Bench::new();
    bench.write("b.jsonl", b"{\"tokens\":[1,2,3]}\n{\"tokens\":[90]}\n");
    let outcome = run(&bench, "generate", "gpt2_like-fp32", "--batch b.jsonl -n 3 --quiet");
    let answers: Vec<Value> = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!((&answers[0]["prompt"], &answers[0]["tokens"][0]), (&Value::from(0), &Value::from(71)));
    let beams = "--tokens 5,6 -n 3 --num-beams 3 --num-return-sequences 2 --json --quiet";
    let json: Value = serde_json::from_str(&run(&bench, "generate", "gpt2_like-fp32", beams).stdout).unwrap();
    assert_eq!(json["answers"].as_array().unwrap().len(), 2);
    bench.write("bad.jsonl", b"{\"text\":\"x\"}\n");
    let outcome = run(&bench, "generate", "gpt2_like-fp32", "--batch bad.jsonl --quiet");
    assert_eq!(
        (outcome.exit, outcome.stderr.as_str()),
        (2, "error: 'bad.jsonl' line 1: a \"prompt\" or \"tokens\" was expected\n")
    );
}

#[test]
fn lines_of_a_batch_have_seeds_of_their_own() {
    let bench = Bench::new();
    let answers = |lines: &str, more: &str| -> Vec<Value> {
        bench.write("b.jsonl", lines.as_bytes());
        let arguments = format!("--batch b.jsonl -n 8 --temperature 1.5 --top-k 0 --seed 3 {more} --quiet");
        let outcome = run(&bench, "generate", "llama-fp32", &arguments);
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let lines = "{\"tokens\":[5,6,7]}\n{\"tokens\":[5,6,7],\"seed\":9}\n{\"tokens\":[5,6,7],\"seed\":-1}\n";
    let batch = answers(lines, "");
    let seed = |answer: &Value| answer["seed"].as_u64().unwrap();
    assert_eq!((seed(&batch[0]), seed(&batch[1])), (3, 9));
    // Each alone says the same by the seed that was told, and so does an engine.
    for answer in &batch {
        let line = format!("{{\"tokens\":[5,6,7],\"seed\":{}}}\n", seed(answer) as i64);
        if i64::try_from(seed(answer)).is_ok() {
            assert_eq!(answers(&line, "")[0]["tokens"], answer["tokens"], "{answer}");
        }
    }
    bench.write("o.json", br#"{"speculative": {"ngram_size": 2}}"#);
    let by_engine = answers(lines, "--overlay o.json");
    assert_eq!((&by_engine[0]["tokens"], &by_engine[1]["tokens"]), (&batch[0]["tokens"], &batch[1]["tokens"]));
    assert_eq!(seed(&by_engine[1]), 9);
    bench.write("b.jsonl", b"{\"tokens\":[5],\"seed\":1.5}\n");
    let outcome = run(&bench, "generate", "llama-fp32", "--batch b.jsonl --quiet");
    assert_eq!(outcome.stderr, "error: 'b.jsonl' line 1: a \"seed\" that is an integer was expected\n");
}

#[test]
fn log_probabilities_are_the_models_or_those_of_what_may_be_drawn() {
    let bench = Bench::new();
    let tops = |more: &str| {
        let arguments =
            format!("--tokens 5,6,7,8 -n 1 --temperature 1 --top-k 2 --seed 3 --logprobs 5 {more} --json --quiet");
        let json: Value = serde_json::from_str(&run(&bench, "generate", "llama-fp32", &arguments).stdout).unwrap();
        json["logprobs"][0]["top"].as_array().unwrap().len()
    };
    assert_eq!((tops(""), tops("--logprobs-mode raw"), tops("--logprobs-mode processed")), (5, 5, 2));
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5 --logprobs 2 --logprobs-mode cooked --quiet");
    assert!(outcome.exit == 2 && outcome.stderr.contains("raw, processed"), "{}", outcome.stderr);
}

#[test]
fn wrong_options_and_configurations_say_what_is_wrong() {
    let bench = Bench::new();
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 320 --quiet");
    assert_eq!(
        (outcome.exit, outcome.stderr.as_str()),
        (2, "error: token 0 of row 0 is 320; the vocabulary has 320\n")
    );
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5 --top-p 2 --quiet");
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (2, "error: 2 was given; a top_p of 0 to 1 was expected\n"));
    bench.write("o.json", b"{\"serch\": {}}");
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5 --overlay o.json --quiet");
    assert_eq!(outcome.exit, 3);
    assert_eq!(outcome.stderr, "error: o.json:1:2: serch is not a key of the root; did you mean 'search'?\n");
    let device = "{\"model\":{\"decoder\":{\"session_options\":{\"provider_options\":[{\"amdgpi\":{}}]}}}}";
    bench.write("o.json", device.as_bytes());
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5 --overlay o.json --quiet");
    assert!(outcome.stderr.contains("Did you mean 'amdgpu'?"), "{}", outcome.stderr);
}

#[test]
fn steps_are_explained() {
    let outcome = run(&Bench::new(), "generate", "llama-fp32", "--tokens 5,6,7,8,9 -n 2 --explain");
    let steps: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("Program")).collect();
    assert!(
        steps[0].starts_with("prefill: Program rows=1 length=6 capacity=256, 5 tokens and 1 of filler"),
        "{steps:?}"
    );
    assert!(
        steps[1].starts_with("decode: Program rows=1 length=1 capacity=256, 1 tokens and 0 of filler"),
        "{steps:?}"
    );
}

#[test]
fn steps_of_an_engine_are_explained_too() {
    let bench = Bench::new();
    let outcome = run(&bench, "generate", "llama-fp32", "-p hello -n 6 --regex [0-9]+ --explain");
    assert!(outcome.stderr.lines().filter(|line| line.contains(": Program rows=1 ")).count() > 2, "{}", outcome.stderr);
    bench.write("o.json", br#"{"speculative": {"ngram_size": 2}}"#);
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5,6,7 -n 3 --overlay o.json --explain");
    assert!(outcome.stderr.contains("prefill: Program rows=1 length="), "{}", outcome.stderr);
}

#[test]
fn programs_are_prepared_where_an_engine_answers() {
    let bench = Bench::new();
    let answer = |more: &str| {
        let outcome = run(&bench, "generate", "llama-fp32", &format!("-p hello -n 6 --regex [0-9]+ {more} --quiet"));
        (outcome.exit, outcome.stdout)
    };
    assert_eq!(answer("--prepare-programs"), answer(""));
    let outcome = run(&bench, "generate", "llama-fp32", "-p hello -n 6 --prepare-programs --quiet");
    assert!(outcome.exit == 2 && outcome.stderr.contains("--prepare-programs is an engine's"), "{}", outcome.stderr);
}

#[test]
fn ends_by_a_stop_string_say_which() {
    let arguments = "--tokens 5,6,7,8 -n 60 --stop never-said --stop tiny --json --quiet";
    let outcome = run(&Bench::new(), "generate", "llama-fp32", arguments);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["answers"][0]["finish"].as_str(), Some("stop_string(1)"), "{json}");
}

#[test]
fn a_conversation_keeps_what_was_said_and_forgets_on_request() {
    let bench = Bench::new();
    let arguments = format!("chat {} -n 4 --quiet", folder("llama-fp32").display());
    let mut command = bench.command(&arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let typed = b"hi\nagain\n/rewind\nmore\n/save said.json\n/exit\n";
    child.stdin.take().unwrap().write_all(typed).unwrap();
    let outcome = child.wait_with_output().unwrap();
    assert!(outcome.status.success());
    let said: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(bench.path("said.json")).unwrap()).unwrap();
    let roles: Vec<&str> = said.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!((said[0]["content"].as_str(), said[2]["content"].as_str()), (Some("hi"), Some("more")));
}

#[test]
fn speed_is_measured_by_prompt_and_by_token() {
    let outcome = run(&Bench::new(), "bench", "gpt2_like-fp32", "-p 8 -n 4 -b 1,2 -r 2 --json --quiet");
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let tests: Vec<&str> = json["rows"].as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp8", "tg4", "pp8+tg4", "pp8", "tg4", "pp8+tg4"]);
    assert!(json["rows"][0]["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_folder_shows_what_it_caches() {
    let bench = Bench::new();
    let json = bench.json(&format!("inspect {}", folder("gemma2-fp32").display()));
    assert_eq!((json["kv_bytes_per_token"].as_u64(), json["layers"][0]["window"].as_u64()), (Some(512), Some(16)));
    assert_eq!(json["kv_capacity_buckets"], serde_json::json!([256, 512]));
    let lengths = json["length_buckets"].as_array().unwrap().len() as u64;
    let rows = json["row_buckets"].as_array().unwrap().len() as u64;
    // Decode steps of one row are prompts of one token; the longest two lengths also run without scores.
    assert_eq!(json["programs"].as_u64(), Some(2 * (lengths + rows - 1 + 1 + 2)));
    assert_eq!(json["roles"][0], serde_json::json!({ "role": "input_ids", "name": "input_ids" }));
    let text = run(&bench, "inspect", "gemma2-fp32", "").stdout;
    assert!(text.contains("  past: past_key_values.0.key, past_key_values.0.value and 1 more layers\n"), "{text}");
    assert!(text.contains("  layers 0: 2 heads of 16 and 16 f32, the last 16 tokens\n"), "{text}");
}

#[test]
fn all_that_is_wrong_with_a_folder_is_told_at_once() {
    let bench = Bench::new();
    bench.write("o.json", br#"{"serch":{},"search":{"top_k":-1},"model":{"decoder":{"hidden_size":128}}}"#);
    let outcome = run(&bench, "inspect", "llama-fp32", "--overlay o.json --json --quiet");
    assert_eq!(outcome.exit, 3);
    assert_eq!(outcome.json()["faults"].as_array().unwrap().len(), 2, "{}", outcome.stdout);
    bench.write("o.json", br#"{"model":{"decoder":{"hidden_size":128,"num_attention_heads":3}}}"#);
    let outcome = run(&bench, "inspect", "llama-fp32", "--overlay o.json --quiet");
    assert_eq!(outcome.exit, 3);
    assert!(outcome.stdout.contains("hidden_size is 128") && outcome.stdout.contains("num_attention_heads is 3"));
    std::fs::create_dir(bench.path("model")).unwrap();
    for name in crate::names_in(&folder("llama-fp32")) {
        std::fs::copy(folder("llama-fp32").join(&name), bench.path("model").join(&name)).unwrap();
    }
    let config = String::from_utf8(bench.read("model/genai_config.json")).unwrap();
    bench.write("model/genai_config.json", config.replacen("\"top_k\": 50", "\"top_q\": 50", 1).as_bytes());
    bench.write("model/model.onnx", b"\x08");
    let outcome = bench.run("inspect model --json --quiet");
    let faults = outcome.json()["faults"].to_string();
    assert!(faults.contains("top_q") && faults.contains("not a valid ONNX file"), "{faults}");
}

#[test]
fn the_verbs_of_text_have_a_name_in_common() {
    let bench = Bench::new();
    let outcome = run(&bench, "llm run", "llama-fp32", "--tokens 5,6,7,8 -n 2 --json --quiet");
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["answers"][0]["tokens"], serde_json::json!([86, 282]));
    assert_eq!(json["schema"].as_str(), Some("precast.generate/1"));
    let outcome = run(&bench, "llm bench", "gpt2_like-fp32", "-p 8 -n 0 -r 1 -o json --quiet");
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
}

#[test]
fn answers_follow_grammars() {
    let bench = Bench::new();
    let outcome = run(&bench, "generate", "llama-fp32", "-p hello -n 40 --regex [0-9]{2}-[ab]{3} --quiet");
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (0, ""));
    let answer = outcome.stdout.trim_end();
    let (digits, letters) = answer.split_once('-').unwrap();
    assert!(digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{answer}");
    assert!(letters.len() == 3 && letters.bytes().all(|byte| b"ab".contains(&byte)), "{answer}");
    bench.write("s.json", br#"{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}"#);
    let outcome = run(&bench, "generate", "llama-fp32", "-p hello -n 60 --schema s.json --json --quiet");
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let value: Vec<bool> = serde_json::from_str(json["answers"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((value.len(), json["answers"][0]["finish"].as_str()), (2, Some("grammar_end")));
    let outcome = run(&bench, "generate", "llama-fp32", "-p hello --regex ( --quiet");
    assert_eq!(outcome.exit, 2);
    assert!(outcome.stderr.starts_with("error: regular expression: "), "{}", outcome.stderr);
}

#[test]
fn a_folder_that_speculates_says_the_same() {
    let bench = Bench::new();
    bench.write("o.json", br#"{"speculative": {"ngram_size": 2}, "engine": {"static_batching": {}}}"#);
    let outcome = run(&bench, "generate", "llama-fp32", "--tokens 5,6,7,8 -n 6 --overlay o.json --json --quiet");
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["answers"][0]["tokens"], serde_json::json!([86, 282, 221, 15, 180, 176]));
}

#[test]
fn folders_are_verified_against_golden_cases() {
    let bench = Bench::new();
    let golden = folder("golden.json");
    let against = format!("--against {} --quiet", golden.display());
    let outcome = run(&bench, "verify", "qwen2-fp32", &against);
    assert_eq!((outcome.exit, outcome.stdout.ends_with("verdict  equal tokens\n")), (0, true), "{}", outcome.stdout);
    bench.write(
        "wrong.json",
        br#"{"cases":[{"id":"w","prompts":[[5,6,7,8]],"max_new_tokens":3,"generated":[[86,282,9]]}]}"#,
    );
    let outcome = run(&bench, "verify", "llama-fp32", "--against wrong.json --quiet");
    assert_eq!(outcome.exit, 4);
    let line = "generator, row 0, step 2: 9 was expected and 221 came; likeliest here: 221 (";
    assert!(outcome.stdout.contains(line) && outcome.stdout.contains("engine, row 0, step 2"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("; the expected 9 has "), "{}", outcome.stdout);
    let outcome = run(&bench, "verify", "phi3-fp32", "--against none.json --quiet");
    assert_eq!(outcome.exit, 2);
}

#[test]
fn ends_scores_and_scripts_of_golden_cases_are_verified() {
    let bench = Bench::new();
    let edge = format!("--against {} --json --quiet", folder("edge_cases.json").display());
    let json = run(&bench, "verify", "llama-fp32", &edge).json();
    let ids: Vec<&str> = json["cases"].as_array().unwrap().iter().map(|case| case["id"].as_str().unwrap()).collect();
    assert!(
        json["equal"] == true && ids.contains(&"edge/llama-rewind") && ids.contains(&"edge/llama-pad-all"),
        "{json}"
    );
    assert!(json["skipped"]["for_other_folders"].as_array().unwrap().len() > 3, "{json}");
    bench.write(
        "wrong.json",
        br#"{"cases":[
            {"id":"finish","prompts":[[5,6,7,8]],"max_new_tokens":2,"generated":[[86,282]],"finish":["eos"]},
            {"id":"logits","prompts":[[5,6,7,8]],"first_logits_head":[[99]]},
            {"id":"script","script":[["append",[5,6,7,8]],["next",1,[86]],["expect_len",4]]},
            {"id":"empty","prompts":[[5]]}]}"#,
    );
    let outcome = run(&bench, "verify", "llama-fp32", "--against wrong.json --quiet");
    assert_eq!(outcome.exit, 4);
    for line in [
        "generator, row 0: an end by eos was expected and one by length came",
        "engine, row 0: an end by eos was expected and one by length came",
        "first scores, row 0, token 0: 99 was expected and ",
        "script, call 2: 4 was expected and 5 came",
        "skipped  1 say nothing that could differ: empty",
        "cases    0 equal of 3",
    ] {
        assert!(outcome.stdout.contains(line), "{line}: {}", outcome.stdout);
    }
    bench.write("bad.json", br#"{"cases":[{"id":"x","script":[["jump",1]]}]}"#);
    let outcome = run(&bench, "verify", "llama-fp32", "--against bad.json --quiet");
    assert!(outcome.exit == 2 && outcome.stderr.contains("is no call of a script"), "{}", outcome.stderr);
}

#[test]
fn rows_of_bench_can_be_compared_and_stored() {
    let bench = Bench::new();
    let outcome = run(&bench, "bench", "gpt2_like-fp32", "-p 8 -n 0 -r 1 -o json --quiet");
    bench.write("old.json", outcome.stdout.as_bytes());
    let outcome = run(&bench, "bench", "gpt2_like-fp32", "-p 8 -n 0 -r 1 --compare old.json --quiet");
    let head =
        "| test | batch | tokens/s | first token | padding | replay/launch/reference | weights | KV | floor | before";
    assert!(outcome.stdout.starts_with(head), "{}", outcome.stdout);
    let outcome = run(&bench, "bench", "gpt2_like-fp32", "-p 8 -n 0 -r 1 -o sql --quiet");
    assert!(outcome.stdout.contains("INSERT INTO bench VALUES ('cpu', 'pp8', 1, "), "{}", outcome.stdout);
    let outcome = run(&bench, "bench", "llama-fp32", "-p 8 -n 4 -r 1 -o csv --quiet");
    let lines: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| lines[0].iter().position(|found| *found == name).unwrap();
    assert_eq!((lines.len(), lines[1][column("test")], lines[2][column("test")]), (4, "pp8", "tg4"));
    // Keys and values of a token: 2 layers of 2 heads of 16, both, f32. Generation begins behind one token.
    assert_eq!((lines[2][column("kv_bytes")], lines[2][column("launched_steps")]), ("2560", "5"));
    assert!(
        lines[2][column("floor_fraction")].parse::<f64>().unwrap() > 0.0
            && lines[1][column("floor_fraction")].is_empty()
    );
    let outcome = run(&bench, "bench", "llama-fp32", "-p 8 -n 0 -r 1 -o jsonl --quiet");
    let row: Value = serde_json::from_str(&outcome.stdout).unwrap();
    // Two layers: queries and their product 64 x 64 each, keys and values 64 x 32 each, three of the feed-forward part, the head.
    assert!(row["weight_bytes"].as_u64().unwrap() > 4 * (2 * (2 * 64 * 64 + 2 * 64 * 32) + 64 * 320), "{row}");
    bench.write("bad.json", b"{}");
    let outcome = run(&bench, "bench", "gpt2_like-fp32", "-p 8 --compare bad.json --quiet");
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (2, "error: 'bad.json': has no \"rows\"\n"));
}

/// Tokens of each answer of a run with `--json`.
fn answers(outcome: &crate::Outcome) -> Vec<Value> {
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    json["answers"].as_array().unwrap().iter().map(|answer| answer["tokens"].clone()).collect()
}

#[test]
fn adapters_are_files_with_names_and_lines_of_a_batch_choose_among_them() {
    let bench = Bench::new();
    let file = |name: &str| folder("llama_lora-fp32").join(format!("{name}.onnx_adapter")).display().to_string();
    let (first, second) = (file("first"), file("second"));
    let one = |adapter: &str| {
        let arguments = format!("--tokens 17 -n 5 --json --quiet {adapter}");
        answers(&run(&bench, "generate", "llama_lora-fp32", &arguments))[0].clone()
    };
    let alone = [one(""), one(&format!("--adapter {first}")), one(&format!("--adapter b={second} --adapter {first}"))];
    let expected = [[90, 11, 82, 8, 90], [90, 62, 75, 26, 75], [48, 24, 74, 90, 53]];
    assert_eq!(alone, expected.map(|tokens| serde_json::json!(tokens)));
    let lines = r#"{"tokens":[17]}
        {"tokens":[17],"adapter":null}
        {"tokens":[17],"adapter":"b"}
        {"tokens":[17],"adapter":"first"}"#;
    bench.write("b.jsonl", lines.as_bytes());
    let arguments = format!("--batch b.jsonl -n 5 --json --quiet --adapter {first} --adapter b={second}");
    let mixed = answers(&run(&bench, "generate", "llama_lora-fp32", &arguments));
    assert_eq!(mixed, [&alone[1], &alone[0], &alone[2], &alone[1]].map(Clone::clone));
    bench.write("c.jsonl", br#"{"tokens":[17],"adapter":"c"}"#);
    let outcome = run(&bench, "generate", "llama_lora-fp32", &format!("--batch c.jsonl --adapter {first} --quiet"));
    let message = "error: 'c.jsonl' line 1: there is no adapter 'c'; loaded are first\n";
    assert_eq!((outcome.exit, outcome.stderr.as_str()), (2, message));
}

#[test]
fn adapters_that_do_not_fit_are_refused_and_inspect_says_what_would() {
    let bench = Bench::new();
    let file = folder("llama_lora-fp32").join("first.onnx_adapter");
    let outcome = run(&bench, "generate", "llama-fp32", &format!("--tokens 5 --quiet --adapter {}", file.display()));
    assert_eq!(outcome.exit, 3);
    assert!(outcome.stderr.contains("that may be replaced; there are none"), "{}", outcome.stderr);
    bench.write("short.onnx_adapter", &std::fs::read(&file).unwrap()[..100]);
    let outcome = run(&bench, "generate", "llama_lora-fp32", "--tokens 5 --quiet --adapter short.onnx_adapter");
    assert_eq!(outcome.exit, 3);
    assert!(outcome.stderr.contains("'short.onnx_adapter': not a valid adapter file: "), "{}", outcome.stderr);
    let text = run(&bench, "inspect", "llama_lora-fp32", "").stdout;
    assert!(text.contains("adapters    may replace 12 parameters\n"), "{text}");
    assert!(text.contains("  model.layers.0.attn.q_proj.lora_A.weight f32[32,lora_r]\n"), "{text}");
}

#[test]
fn golden_cases_say_which_adapter_they_are_for() {
    let bench = Bench::new();
    let against = folder("adapter_cases.json");
    let outcome = run(&bench, "verify", "llama_lora-fp32", &format!("--against {}", against.display()));
    assert_eq!(outcome.exit, 0, "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("cases    9 equal of 9\n"), "{}", outcome.stdout);
}
