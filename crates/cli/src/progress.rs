//! Progress of work that takes longer than two seconds: a bar or spinner on a terminal, a line now and then elsewhere.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use precast::{Phase, Progress};

use crate::output::{Console, print_notice};

/// Work shorter than this shows nothing.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Time between redraws on a terminal; slow, so that measurements beside it are not disturbed.
const REDRAW_TIME: Duration = Duration::from_millis(250);
/// Time between lines where there is no terminal.
const LINE_TIME: Duration = Duration::from_secs(10);
const BAR: &str = "{msg}  [{bar:30}] {percent} %  {elapsed} of about {duration}";
const BUCKETS: &str = "[{bar:30}] {msg}  {elapsed}";
const SPINNER: &str = "{spinner} {msg}  {elapsed}";

impl Console {
    /// Shows how the Buckets of a model come, from the second second on.
    pub fn buckets(&self) -> Arc<BucketProgress> {
        let bar = (self.has_progress && self.is_terminal).then(ProgressBar::hidden);
        Arc::new(BucketProgress { has_lines: self.has_progress && !self.is_terminal, bar, told: Mutex::new(None) })
    }

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

/// Progress of the Buckets of a model.
pub struct BucketProgress {
    has_lines: bool,
    bar: Option<ProgressBar>,
    /// When a line was last printed.
    told: Mutex<Option<Instant>>,
}

impl BucketProgress {
    /// Shows how far it is.
    pub fn show(&self, progress: &Progress) {
        if progress.elapsed < QUIET_TIME {
            return;
        }
        let what = match progress.phase {
            Phase::Programs => "Buckets",
            Phase::Measuring => "measuring",
            Phase::Ready => return self.finish(),
        };
        let left = progress.eta.map_or(String::new(), |eta| format!(", about {:.0} s left", eta.as_secs_f64().ceil()));
        let text = format!("{what} {} of {}, {} compiled{left}", progress.done, progress.total, progress.compiled);
        if let Some(bar) = &self.bar {
            if bar.is_hidden() {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
                bar.set_style(style(BUCKETS));
                bar.set_length(progress.total as u64);
            }
            bar.set_position(progress.done as u64);
            bar.set_message(text);
        } else if self.has_lines {
            let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if told.is_none_or(|told| told.elapsed() >= LINE_TIME) {
                *told = Some(Instant::now());
                print_notice(&format!("{text}\n"));
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
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
