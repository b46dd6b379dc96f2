//! Progress of work that takes longer than two seconds: a bar or spinner on a terminal, a line now and then elsewhere.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Console, print_notice};

/// Work shorter than this shows nothing.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Time between redraws on a terminal; slow, so that measurements beside it are not disturbed.
const REDRAW_TIME: Duration = Duration::from_millis(250);
/// Time between lines where there is no terminal.
const LINE_TIME: Duration = Duration::from_secs(10);
const BAR: &str = "{msg}  [{bar:30}] {percent} %  {elapsed} of about {duration}";
const SPINNER: &str = "{spinner} {msg}  {elapsed}";

impl Console {
    /// Does the work and shows progress meanwhile. `expected`: how long it takes, where that is known.
    pub fn during<T>(&self, what: &str, expected: Option<Duration>, work: impl FnOnce() -> T) -> T {
        if !self.has_progress {
            return work();
        }
        let (done, is_done) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || show(self, what, expected, &is_done));
            let result = work();
            drop(done);
            result
        })
    }
}

fn show(console: &Console, what: &str, expected: Option<Duration>, is_done: &Receiver<()>) {
    let goes_on = |time: Duration| is_done.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    let begun = Instant::now();
    if !console.is_terminal {
        while goes_on(LINE_TIME) {
            print_notice(&format!("{what}: {} s\n", begun.elapsed().as_secs()));
        }
        return;
    }
    if !goes_on(QUIET_TIME) {
        return;
    }
    let bar = match expected {
        Some(expected) => ProgressBar::new(expected.as_millis() as u64).with_style(style(BAR)),
        None => ProgressBar::new_spinner().with_style(style(SPINNER)),
    };
    let bar = bar.with_message(what.to_string()).with_elapsed(begun.elapsed());
    loop {
        match expected {
            Some(expected) => bar.set_position(begun.elapsed().min(expected).as_millis() as u64),
            None => bar.tick(),
        }
        if !goes_on(REDRAW_TIME) {
            break;
        }
    }
    bar.finish_and_clear();
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [BAR, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
