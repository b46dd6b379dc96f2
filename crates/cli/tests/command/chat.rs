//! `chat`: what fails or is cancelled ends a turn and never the conversation.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::Bench;

/// Time that a process which waits for a line needs to read it and to begin its turn.
const TURN_BEGINS: Duration = Duration::from_millis(20);

fn begin(bench: &Bench, arguments: &str) -> (Child, ChildStdin) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data/llama-fp32");
    let mut command = bench.command(&format!("chat {} {arguments}", folder.display()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

/// Contents of the messages of a saved conversation.
fn said(bench: &Bench, name: &str) -> Vec<String> {
    let messages: Vec<Value> = serde_json::from_slice(&bench.read(name)).unwrap();
    messages.iter().map(|message| message["content"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_turn_that_fails_is_dropped_and_the_conversation_goes_on() {
    let bench = Bench::new();
    let (child, mut stdin) = begin(&bench, "-n 2 --quiet --json");
    let too_long = "word ".repeat(600);
    let typed = format!("hi\n{too_long}\n/save none/said.json\nmore\n/save said.json\n/exit\n");
    stdin.write_all(typed.as_bytes()).unwrap();
    let outcome = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(0), "{stderr}");
    let errors: Vec<&str> = stderr.lines().collect();
    assert!(errors[0].starts_with("error: row 0 would have ") && errors[0].ends_with("context_length is 512"));
    assert!(errors[1].starts_with("error: cannot write 'none/said.json': "), "{stderr}");
    let said = said(&bench, "said.json");
    assert_eq!((said.len(), said[0].as_str(), said[2].as_str()), (4, "hi", "more"));
    let stdout = String::from_utf8(outcome.stdout).unwrap();
    let report: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((report["turns"].as_u64(), report["failures"].as_u64()), (Some(2), Some(2)));
}

/// A template that takes its time over messages that say "slow".
const SLOW_TEMPLATE: &str = "{% for m in messages %}{% if 'slow' in m.content %}{% for a in range(4000) %}\
    {% for b in range(1000) %}{% endfor %}{% endfor %}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

#[test]
fn ctrl_c_ends_a_turn_during_its_prompt_and_during_its_answer() {
    let bench = Bench::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data/llama-fp32");
    std::fs::create_dir(bench.path("model")).unwrap();
    for name in crate::names_in(&from) {
        std::fs::copy(from.join(&name), bench.path("model").join(&name)).unwrap();
    }
    bench.write("model/chat_template.jinja", SLOW_TEMPLATE.as_bytes());
    let mut command = bench.command("chat model -n 400 --ignore-eos --quiet");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let interrupt = |child: &Child| {
        let process = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    };
    let wait_for = |name: &str| {
        while !bench.path(name).exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(TURN_BEGINS);
    };
    stdin.write_all(b"/save opened.json\nslow first\n/save cancelled.json\nsecond\nslow third\n").unwrap();
    wait_for("opened.json");
    interrupt(&child);
    // A signal that comes too late for the answer to the second message comes early enough for the third.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    interrupt(&child);
    stdin.write_all(b"/save said.json\n/exit\n").unwrap();
    stdout.read_to_string(&mut String::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(said(&bench, "cancelled.json"), [""; 0], "the first message had no answer");
    assert_eq!(said(&bench, "said.json")[0], "second");
}
