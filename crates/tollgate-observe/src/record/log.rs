//! The log: the requests that are under way, and those that have ended, both in one bound.

use super::Recorded;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::{Ask, Clock, Cost, Instant, Limiter, MAX_COSTS, Outcome};

/// A bounded log of requests. A handle: clones share the records.
///
/// | column | content |
/// |---|---|
/// | `at` | when the request came, in seconds since the log was first used |
/// | `weight` | the number of requests that this one stands for: see [`one_in`](Self::one_in) |
/// | `calls` | the [count](Ask::count) of the ask |
/// | `waited` | seconds from then to its admission or its refusal |
/// | `leg` | the leg that refused it; `(cancelled)` when the wait was dropped; empty when it was admitted |
/// | `hold` | seconds for which it worked; empty when it was refused, so that this is not known |
/// | `failed` | `yes` or `no`; empty as `hold` |
/// | a cost | units that the request named at first; zero where it did not name the cost |
/// | a cost and `.used` | units that it was [settled](tollgate::Permit::settle) to; empty as `hold` |
///
/// Records stand in the order in which requests ended. The [class](Ask::class) of a request is not recorded.
///
/// A request that is recorded takes the lock of the log at its start and at its end, for some steps. One that is not recorded adds to
/// a count.
///
/// # Memory
/// 184 bytes for each record, up to the capacity, and the names of legs that refused. The buffers of requests under way and of those
/// that have ended double as they grow, and keep their size: so at most four times that. A full log forgets the oldest record that
/// has ended, or else the newest request. [`lost`](Self::lost) counts both.
///
/// ```
/// # use tollgate_observe::record::AdmissionLog;
/// # use tollgate::{LimiterExt, Semaphore};
/// let log = AdmissionLog::new(2, &[]);
/// let gate = log.record(Semaphore::new(8));
/// for _ in 0..3 {
///     drop(gate.try_admit(1).unwrap());
/// }
/// assert_eq!(log.lost(), 1, "it keeps two");
/// assert_eq!(log.write(&mut Vec::new())?, 2);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct AdmissionLog {
    shared: Arc<Shared>,
    every: u64,
}

struct Shared {
    costs: Box<[Cost]>,
    capacity: usize,
    asked: AtomicU64,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    /// The instant that the first request came.
    start: Option<Instant>,
    has_header: bool,
    lost: u64,
    /// By number. Empty when the number is free.
    open: Vec<Option<Record>>,
    free: Vec<usize>,
    ended: VecDeque<Record>,
}

struct Record {
    at: Duration,
    weight: u64,
    calls: u64,
    /// When it was admitted.
    since: Instant,
    waited: Duration,
    units: [Option<[u64; 2]>; MAX_COSTS],
    end: End,
}

const _: () = assert!(size_of::<Option<Record>>() <= 184);

enum End {
    Open,
    Refused(Box<str>),
    Finished { held: Duration, failed: bool },
}

/// A request that is being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(usize);

impl Number {
    /// As a word of a ticket, which is zero for a request that is not recorded.
    pub(super) fn word(number: Option<Self>) -> u64 {
        number.map_or(0, |number| number.0 as u64 + 1)
    }

    pub(super) fn of_word(word: u64) -> Option<Self> {
        word.checked_sub(1).map(|number| Self(number as usize))
    }
}

impl AdmissionLog {
    /// The name in place of a leg for a wait that was dropped.
    pub const CANCELLED: &str = "(cancelled)";

    /// A log of at most `capacity` requests, with the first [`MAX_COSTS`] of these costs.
    pub fn new(capacity: usize, costs: &[Cost]) -> Self {
        let shared = Shared {
            costs: costs.iter().take(MAX_COSTS).copied().collect(),
            capacity,
            asked: AtomicU64::new(0),
            records: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            every: 1,
        }
    }

    /// Records one in `every` requests. Each of them stands for that many. Zero counts as one.
    #[must_use]
    pub fn one_in(mut self, every: u64) -> Self {
        self.every = every.max(1);
        self
    }

    /// The same limiter, with its requests recorded here. Put it outermost: what a policy inside asks for while it waits is no
    /// request.
    pub fn record<L: Limiter>(&self, limiter: L) -> Recorded<L> {
        Recorded::new(limiter, self.clone())
    }

    /// Requests that were forgotten, or not recorded, since the log was full.
    pub fn lost(&self) -> u64 {
        self.shared.records.lock().lost
    }

    /// Takes the records of requests that have ended, and writes them. The first time it writes the names of the columns before
    /// them. Returns the number of records.
    ///
    /// # Errors
    /// Those of `out`. The records that were taken are gone then.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<usize> {
        let (needs_header, ended) = {
            let mut records = self.shared.records.lock();
            (!records.has_header, std::mem::take(&mut records.ended))
        };
        let mut text = String::new();
        if needs_header {
            text.push_str("at,weight,calls,waited,leg,hold,failed");
            for cost in &self.shared.costs {
                let name = Field(cost.name());
                let used = format!("{}.used", cost.name());
                let _ = write!(text, ",{name},{}", Field(&used));
            }
            text.push('\n');
        }
        for record in &ended {
            record.line(&self.shared.costs, &mut text);
        }
        out.write_all(text.as_bytes())?;
        self.shared.records.lock().has_header = true;
        Ok(ended.len())
    }

    /// Begins to record a request that came at `now`, if it is one of those that are recorded.
    pub(super) fn begin(&self, ask: &Ask, clock: &Clock, now: Instant) -> Option<Number> {
        // Relaxed: only its own order counts.
        if self.shared.asked.fetch_add(1, Ordering::Relaxed) % self.every != 0 {
            return None;
        }
        let mut units = [None; MAX_COSTS];
        for (cost, units) in self.shared.costs.iter().zip(&mut units) {
            *units = ask.of(*cost).map(|asked| [asked, asked]);
        }
        let mut records = self.shared.records.lock();
        let start = *records.start.get_or_insert(now);
        let record = Record {
            at: clock.between(start, now),
            weight: self.every,
            calls: ask.count(),
            since: now,
            waited: Duration::ZERO,
            units,
            end: End::Open,
        };
        let has_room = records.make_room(self.shared.capacity);
        has_room.then(|| records.open(record))
    }

    /// The request was admitted at `now`.
    pub(super) fn admitted(&self, number: Number, clock: &Clock, now: Instant) {
        self.change(number, |record| {
            record.waited = clock.between(record.since, now);
            record.since = now;
        });
    }

    pub(super) fn settled(&self, number: Number, cost: Cost, actual: u64) {
        let Some(position) = self.shared.costs.iter().position(|&known| known == cost) else {
            return;
        };
        self.change(number, |record| {
            if let Some([_, used]) = &mut record.units[position] {
                *used = actual;
            }
        });
    }

    pub(super) fn refused(&self, number: Number, leg: &str, clock: &Clock, now: Instant) {
        let leg = leg.into();
        self.end(number, |record| {
            record.waited = clock.between(record.since, now);
            record.end = End::Refused(leg);
        });
    }

    pub(super) fn finished(&self, number: Number, outcome: Outcome, clock: &Clock, now: Instant) {
        self.end(number, |record| {
            record.end = End::Finished {
                held: clock.between(record.since, now),
                failed: matches!(outcome, Outcome::Failure | Outcome::Overload),
            };
        });
    }

    /// The request was given back before it started: there was none.
    pub(super) fn withdrawn(&self, number: Number) {
        self.shared.records.lock().close(number);
    }

    fn change(&self, number: Number, change: impl FnOnce(&mut Record)) {
        let mut records = self.shared.records.lock();
        if let Some(record) = records.open.get_mut(number.0).and_then(Option::as_mut) {
            change(record);
        }
    }

    fn end(&self, number: Number, end: impl FnOnce(&mut Record)) {
        let mut records = self.shared.records.lock();
        if let Some(mut record) = records.close(number) {
            end(&mut record);
            records.ended.push_back(record);
        }
    }
}

impl fmt::Debug for AdmissionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.shared.records.lock();
        f.debug_struct("AdmissionLog")
            .field("ended", &records.ended.len())
            .field("lost", &records.lost)
            .finish_non_exhaustive()
    }
}

impl Records {
    /// Makes room for one more, if need be by forgetting the oldest that has ended. False when all are under way.
    fn make_room(&mut self, capacity: usize) -> bool {
        let under_way = self.open.len() - self.free.len();
        if under_way + self.ended.len() < capacity {
            return true;
        }
        self.lost += 1;
        self.ended.pop_front().is_some()
    }

    fn open(&mut self, record: Record) -> Number {
        let number = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        self.open[number] = Some(record);
        Number(number)
    }

    fn close(&mut self, number: Number) -> Option<Record> {
        let record = self.open.get_mut(number.0)?.take()?;
        self.free.push(number.0);
        Some(record)
    }
}

impl Record {
    fn line(&self, costs: &[Cost], text: &mut String) {
        let seconds = |time: Duration| format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
        let (leg, hold, failed) = match &self.end {
            End::Refused(leg) => (&**leg, String::new(), ""),
            End::Finished { held, failed } => ("", seconds(*held), if *failed { "yes" } else { "no" }),
            End::Open => unreachable!("only requests that have ended are written"),
        };
        let (at, waited) = (seconds(self.at), seconds(self.waited));
        let (weight, calls) = (self.weight, self.calls);
        let _ = write!(text, "{at},{weight},{calls},{waited},{},{hold},{failed}", Field(leg));
        for units in &self.units[..costs.len()] {
            let [asked, used] = units.unwrap_or_default();
            let _ = match &self.end {
                End::Refused(_) => write!(text, ",{asked},"),
                _ => write!(text, ",{asked},{used}"),
            };
        }
        text.push('\n');
    }
}

/// A field of CSV, quoted where it must be (RFC 4180).
struct Field<'a>(&'a str);

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.contains([',', '"', '\n', '\r']) {
            true => write!(f, "\"{}\"", self.0.replace('"', "\"\"")),
            false => f.write_str(self.0),
        }
    }
}
