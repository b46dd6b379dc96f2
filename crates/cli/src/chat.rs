//! `chat`: a conversation on the terminal. Ctrl-C ends an answer and not the program; what was said stays in the cache, so
//! that a turn runs its new tokens only.

use std::io::{BufRead, Write};
use std::time::Instant;

use clap::Args;
use precast::generate::chat_template::{ChatOptions, ChatValue};
use precast::generate::{Generator, Tokenizer};
use precast::{Adapters, Error, TextFolder};
use serde_json::json;

use crate::Cx;
use crate::args::Shared;
use crate::exit::Failure;
use crate::interrupt::Turn;
use crate::output::{Report, print_result};
use crate::text_args::{FolderArgs, SearchArgs};

/// What can be typed beside messages.
const COMMANDS: &str = "/rewind drops the last exchange, /clear all of them, /save FILE writes them, /stats shows speed, \
                        /adapter NAME takes another adapter and /adapter none, /exit ends; Ctrl-C ends an answer";

/// Arguments of `chat`.
#[derive(Args)]
pub struct ChatArgs {
    /// The folder.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Show tokens a second behind each answer
    #[arg(long)]
    pub stats: bool,
    /// How tokens are chosen.
    #[command(flatten)]
    pub search: SearchArgs,
}

/// A conversation.
struct Conversation<'a> {
    tokenizer: &'a Tokenizer,
    generator: Generator,
    /// Role and content of each message.
    messages: Vec<(String, String)>,
    adapters: &'a Adapters,
    shows_stats: bool,
    cx: &'a Cx,
}

/// Chats until the input ends.
pub fn run_chat(args: &ChatArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let TextFolder { model, adapters, tokenizer, .. } = args.folder.open(shared, cx)?;
    let Some(tokenizer) = tokenizer.filter(Tokenizer::has_chat_template) else {
        return Err(Failure::usage("a chat needs a tokenizer.json and a chat template in the folder"));
    };
    let params = args.search.params(&model)?;
    let generator = Generator::with_tokenizer(&model, params, &tokenizer).map_err(Error::from)?;
    let system = args.system.iter().map(|text| ("system".to_string(), text.clone()));
    let messages = system.collect();
    let shows_stats = args.stats;
    let (tokenizer, adapters) = (&tokenizer, &adapters);
    let mut conversation = Conversation { tokenizer, generator, messages, adapters, shows_stats, cx };
    if cx.console.is_terminal {
        cx.console.tell(COMMANDS);
        // While someone types; without the thread the first answer waits instead.
        let _ = model.prepare_first_steps();
    }
    let lines = Lines { cx };
    let mut failures = 0;
    for line in lines {
        let line = line?;
        let done = match line.trim() {
            "" => Ok(()),
            "/exit" => break,
            command if command.starts_with('/') => conversation.obey(command),
            text => conversation.answer(text),
        };
        if let Err(failure) = done {
            cx.console.error(&failure.message);
            failures += 1;
        }
    }
    let turns = conversation.messages.iter().filter(|(role, _)| role == "assistant").count();
    Ok(Report::done(String::new(), json!({ "device": model.device(), "turns": turns, "failures": failures })))
}

/// Lines that are typed, behind a mark where someone types.
struct Lines<'a> {
    cx: &'a Cx,
}

impl Iterator for Lines<'_> {
    type Item = Result<String, Failure>;

    fn next(&mut self) -> Option<Result<String, Failure>> {
        if self.cx.console.is_terminal {
            print_result("> ");
        }
        let mut line = String::new();
        match std::io::stdin().lock().read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(Failure::usage(format!("cannot read the input: {error}")))),
        }
    }
}

impl Conversation<'_> {
    /// Does what a command says.
    fn obey(&mut self, command: &str) -> Result<(), Failure> {
        let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
        match word {
            "/rewind" => {
                let last = self.messages.iter().rposition(|(role, _)| role == "user");
                self.messages.truncate(last.unwrap_or(self.messages.len()));
            }
            "/clear" => self.messages.retain(|(role, _)| role == "system"),
            "/stats" => self.shows_stats = !self.shows_stats,
            "/adapter" if !rest.trim().is_empty() => self.take_adapter(rest.trim())?,
            "/save" if !rest.trim().is_empty() => self.save(rest.trim())?,
            _ => self.cx.console.tell(COMMANDS),
        }
        Ok(())
    }

    /// Goes on with another adapter, or with none; what was said is run again.
    fn take_adapter(&mut self, name: &str) -> Result<(), Failure> {
        let adapter = match name {
            "none" => None,
            name => Some(self.adapters.get(name).map_err(Error::from)?),
        };
        Ok(self.generator.set_adapter(adapter.as_ref()).map_err(Error::from)?)
    }

    /// Writes the conversation as JSON.
    fn save(&self, path: &str) -> Result<(), Failure> {
        let message = |(role, content): &(String, String)| json!({ "role": role, "content": content });
        let messages: Vec<_> = self.messages.iter().map(message).collect();
        let fail = |error: std::io::Error| Failure::usage(format!("cannot write '{path}': {error}"));
        let mut file = std::fs::File::create(path).map_err(fail)?;
        writeln!(file, "{}", json!(messages)).map_err(fail)
    }

    /// Answers a message; Ctrl-C ends that. A message without an answer was not said.
    fn answer(&mut self, text: &str) -> Result<(), Failure> {
        let turn = self.cx.interrupt.begin_turn();
        let said = self.messages.len();
        self.messages.push(("user".to_string(), text.to_string()));
        let Err(failure) = self.answer_last(&turn) else { return Ok(()) };
        self.messages.truncate(said);
        if !turn.is_cancelled() {
            return Err(failure);
        }
        self.cx.console.notice("cancelled before the answer; the message is dropped");
        Ok(())
    }

    /// Answers the last message.
    fn answer_last(&mut self, turn: &Turn) -> Result<(), Failure> {
        let messages = ChatValue::of_messages(self.messages.iter().map(|(role, content)| (&role[..], &content[..])));
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let prompt = self.tokenizer.apply_chat_template(&messages, &options).map_err(Error::from)?;
        let ids = self.tokenizer.encode(&prompt).map_err(Error::from)?;
        let begun = Instant::now();
        self.show(&ids, turn)?;
        let first_s = begun.elapsed().as_secs_f64();
        let (answer, tokens) = self.stream(turn)?;
        self.messages.push(("assistant".to_string(), answer));
        if self.shows_stats {
            let decode_s = begun.elapsed().as_secs_f64() - first_s;
            let speed = tokens as f64 / decode_s.max(f64::MIN_POSITIVE);
            self.cx.console.tell(&format!("prompt {first_s:.2} s, {tokens} tokens, {speed:.1} tokens/s"));
        }
        Ok(())
    }

    /// Makes the generator's row this text. What both begin with stays in the cache.
    fn show(&mut self, ids: &[u32], turn: &Turn) -> Result<(), Failure> {
        let known = self.generator.sequence(0);
        let common = known.iter().zip(ids).take_while(|(known, id)| known == id).count();
        // At least one token is new, so that an answer begins behind it.
        let common = common.min(ids.len().saturating_sub(1));
        if self.generator.row_count() > 0 {
            self.generator.rewind(0, common).map_err(Error::from)?;
        }
        let is_cancelled = || turn.is_cancelled();
        Ok(self.generator.append_unless(&[&ids[common..]], &is_cancelled).map_err(Error::from)?)
    }

    /// Prints the answer as it comes, until it ends or the turn is cancelled.
    fn stream(&mut self, turn: &Turn) -> Result<(String, usize), Failure> {
        let (mut answer, mut tokens) = (String::new(), 0);
        while !self.generator.is_done() && !turn.is_cancelled() {
            for token in self.generator.next().map_err(Error::from)? {
                print_result(&token.text);
                answer.push_str(&token.text);
                tokens += 1;
            }
        }
        print_result("\n");
        Ok((answer, tokens))
    }
}
