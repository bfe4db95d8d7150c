//! The events of a run: each process writes a file of its own, a line for each event.
//!
//! A line is one write to a file that is only appended to, so that a killed process leaves its events, and at most one line
//! torn in two. Instants are those of [`instant`](super::instant).

use super::instant::{Nanos, nanos, now};
use super::spender::Meter;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// A request: a process, its own count of requests, and the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) process: u32,
    pub(crate) number: u64,
    /// The number of the tenant, and zero for the semaphore.
    #[serde(default)]
    pub(crate) key: u32,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A caller requests a permit of this weight.
    Asked { ask: Ask, weight: u64, at: Nanos },
    /// It has it: requested no earlier than `sent`, known here from `received` on, and held until `deadline` unless renewed.
    Granted {
        ask: Ask,
        weight: u64,
        /// Zero without a fence.
        token: u64,
        /// The tokens of the call, and those that it keeps when it gives the permit back.
        #[serde(default)]
        tokens: (u64, u64),
        sent: Nanos,
        received: Nanos,
        deadline: Nanos,
    },
    /// It still holds it, and the deadline has moved.
    Held { ask: Ask, deadline: Nanos },
    /// It gives them back. The instant is of before the call.
    Released { ask: Ask, at: Nanos, deadline: Nanos },
    /// It learnt that the permit is gone.
    Lost { ask: Ask, at: Nanos, deadline: Nanos },
    /// The store, or its client, refused it.
    Refused { ask: Ask, at: Nanos, why: String },
    /// The caller dropped its future.
    Cancelled {
        ask: Ask,
        at: Nanos,
        /// It had been woken, and left without looking at its result.
        at_the_grant: bool,
    },
    /// A unit of a rate or a window: requested at `sent`, and known from `received` on.
    Spent {
        meter: Meter,
        process: u32,
        sent: Nanos,
        received: Nanos,
    },
    /// The process did not run, or not in time, between these instants: found by a thread that sleeps and checks.
    Stalled { process: u32, from: Nanos, until: Nanos },
    /// The limit became this one at some instant between the two: of a tenant's permits, and with zero of the semaphore.
    Limit {
        #[serde(default)]
        key: u32,
        limit: u64,
        sent: Nanos,
        done: Nanos,
    },
    /// From `at` on these processes were dead, stopped, or could not reach the store, and their permits have to come back.
    Gone { processes: Vec<u32>, at: Nanos },
    /// These processes were killed: they held their permits until now.
    Killed { processes: Vec<u32>, at: Nanos },
    /// The store serves all processes again, after `fault`.
    Healed { fault: String, at: Nanos },
    /// The run begins this fault.
    Fault { fault: String, at: Nanos },
    /// The units in use of the legs of a tenant, and of its permits, after all calls have ended.
    InUse { key: u32, units: [u64; 4], at: Nanos },
    /// The keys left in the store at the end.
    Left { keys: u64 },
}

impl Event {
    /// The tenant of which it is, and zero of the semaphore; nothing if it is of all.
    pub(crate) fn key(&self) -> Option<u32> {
        match self {
            Self::Asked { ask, .. }
            | Self::Granted { ask, .. }
            | Self::Held { ask, .. }
            | Self::Released { ask, .. }
            | Self::Lost { ask, .. }
            | Self::Refused { ask, .. }
            | Self::Cancelled { ask, .. } => Some(ask.key),
            Self::Limit { key, .. } | Self::InUse { key, .. } => Some(*key),
            _ => None,
        }
    }
}

/// How long the thread sleeps that finds stalls.
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

    /// Begins a thread that records stalls of this process, from this call on, until the sender of `stop` is dropped. Each
    /// check begins where the one before it ended, so that it does not matter where in between the process stops.
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
