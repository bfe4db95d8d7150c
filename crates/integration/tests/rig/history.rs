//! What happened in a run: each process writes a file of its own, a line for each event.
//!
//! A line is one write to a file that is only appended to, so that a process that is killed leaves what it had seen, and at
//! most one line torn in two. Instants are those of [`instant`](super::instant).

use super::instant::{Nanos, nanos, now};
use super::spender::Meter;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Who asked: a process, and its own count of asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) process: u32,
    pub(crate) number: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A caller wants a number of permits.
    Asked { ask: Ask, weight: u64, at: Nanos },
    /// It has them: asked for no earlier than `sent`, known here from `received` on, and held until `deadline` unless
    /// renewed.
    Granted {
        ask: Ask,
        weight: u64,
        token: u64,
        sent: Nanos,
        received: Nanos,
        deadline: Nanos,
    },
    /// It has them still, and the deadline has moved.
    Held { ask: Ask, deadline: Nanos },
    /// It gives them back. The instant is of before the call.
    Released { ask: Ask, at: Nanos, deadline: Nanos },
    /// It was told that they are gone.
    Lost { ask: Ask, at: Nanos, deadline: Nanos },
    /// The store, or the client for it, said no.
    Refused { ask: Ask, at: Nanos, why: String },
    /// The caller dropped its future.
    Cancelled {
        ask: Ask,
        at: Nanos,
        /// It had been woken, and left without looking what it got.
        at_the_grant: bool,
    },
    /// A process was granted one of a rate or a window: asked for at `sent`, and known from `received` on.
    Spent {
        meter: Meter,
        process: u32,
        sent: Nanos,
        received: Nanos,
    },
    /// The process did not run, or not in time, between these instants: found by a thread that sleeps and looks.
    Stalled { process: u32, from: Nanos, until: Nanos },
    /// The limit became this one at some instant between the two.
    Limit { limit: u64, sent: Nanos, done: Nanos },
    /// From `at` on these processes were dead, stopped, or could not reach the store, and whatever they held has to come back.
    Gone { processes: Vec<u32>, at: Nanos },
    /// These processes were killed: what they held they held until now.
    Killed { processes: Vec<u32>, at: Nanos },
    /// The store serves every process again, after `fault`.
    Healed { fault: String, at: Nanos },
    /// The run begins to do this.
    Fault { fault: String, at: Nanos },
    /// The number of keys left in the store when all processes had gone.
    Left { keys: u64 },
}

/// How long the thread sleeps that finds out when its process did not run.
pub(crate) const NAP: Duration = Duration::from_millis(5);

/// The file of one process.
#[derive(Debug)]
pub(crate) struct Writer(File);

impl Writer {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create_new(true).append(true).open(path).map(Self)
    }

    /// Writes the event before it returns. Callers of one process may write at the same time.
    pub(crate) fn write(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event is plain data");
        line.push(b'\n');
        let written = (&self.0).write(&line).expect("the history can be written");
        assert_eq!(written, line.len(), "a line is one write");
    }

    /// Begins a thread that writes down when this process did not run in time, from this call on, until the sender of `stop` is
    /// dropped. Each look begins where the one before it ended, so that it does not matter where in between the process stops.
    pub(crate) fn watch_stalls(
        self: std::sync::Arc<Self>,
        process: u32,
        stop: std::sync::mpsc::Receiver<()>,
    ) -> std::thread::JoinHandle<()> {
        use std::sync::mpsc::RecvTimeoutError;
        const LATE: Nanos = 1_000_000;
        let mut begun = now();
        std::thread::spawn(move || {
            loop {
                let from = begun + nanos(NAP);
                let over = matches!(stop.recv_timeout(NAP), Err(RecvTimeoutError::Disconnected));
                let until = now();
                begun = until;
                if until > from + LATE {
                    self.write(&Event::Stalled { process, from, until });
                }
                if over {
                    return;
                }
            }
        })
    }
}

/// The events of one file. Of a process that was killed the last line may be torn; any other line that cannot be read is an
/// error that names the file and the line.
pub(crate) fn read(path: &Path) -> Result<Vec<Event>, String> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole]
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_slice(line).map_err(|error| format!("{}:{}: {error}", path.display(), number + 1))
        })
        .collect()
}
