//! The audit log: one line per request in a CSV file, whose writers are capped by a semaphore.
//!
//! A line is `limits` and the limits of a tenant, or `request` and a row. A field that has no value is empty.

use super::pace::Pace;
use super::witness::Noted;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate::{Reason, Semaphore};

/// How many writers may be open at once.
pub const WRITERS: usize = 4;
/// How long a writer is held beyond the write itself, in the trace's time. It makes the cap bind.
const COMMIT: Duration = Duration::from_millis(25);

/// A tenant's limits as they were in force, as whole numbers: count, period in nanoseconds, burst.
#[derive(Clone)]
pub struct Limits {
    pub tenant: String,
    pub requests: [i64; 3],
    pub tokens: [i64; 3],
    pub window: [i64; 2],
    pub in_flight: i64,
    pub max_wait: i64,
    pub arrived: i64,
    pub trace_tokens: i64,
    /// A waiter may count as of so much earlier than it is served.
    pub lateness: i64,
    /// By real threads and timers.
    pub live: bool,
    /// How many times as fast as the trace.
    pub speed: i64,
}

/// The log of one request. All instants are nanoseconds since the run began.
///
/// In virtual time no time passes between an act and its note. In real time one thread may be stopped between the two, so
/// the log says between which two instants something happened: the limiters charged between `counted` and `noted`, and
/// the excess came back, with the place in flight, between `finished` and `settled`.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub tenant: String,
    pub id: i64,
    pub arrived: i64,
    /// It is in the queue by then, or has its answer.
    pub joined: i64,
    /// The instant by which the limiters admitted it.
    pub counted: Option<i64>,
    /// By then all of them had.
    pub noted: Option<i64>,
    /// Admitted or refused, as the caller saw it.
    pub ended_wait: i64,
    pub leg: Option<String>,
    pub reason: Option<String>,
    pub estimate: i64,
    pub context: i64,
    pub generated: i64,
    pub admitted_order: Option<i64>,
    pub finished_order: Option<i64>,
    /// The work was done.
    pub finished: Option<i64>,
    /// By then the excess had come back.
    pub settled: Option<i64>,
}

fn nanos(elapsed: Duration) -> i64 {
    elapsed.as_nanos() as i64
}

impl Row {
    pub fn new(tenant: &str, id: i64, arrived: Duration) -> Self {
        Self {
            tenant: tenant.into(),
            id,
            arrived: nanos(arrived),
            ..Self::default()
        }
    }

    pub fn refused(&mut self, leg: &str, reason: Reason, at: Duration) {
        self.leg = Some(leg.into());
        self.reason = Some(format!("{reason:?}"));
        self.ended_wait = nanos(at);
    }

    pub fn admitted(&mut self, noted: &Noted, at: Duration) {
        self.admitted_order = Some(noted.order);
        self.counted = Some(nanos(noted.counted));
        self.noted = Some(nanos(noted.at));
        self.ended_wait = nanos(at);
    }

    pub fn finished(&mut self, order: i64, at: Duration) {
        self.finished_order = Some(order);
        self.finished = Some(nanos(at));
    }

    pub fn settled(&mut self, at: Duration) {
        self.settled = Some(nanos(at));
    }

    pub fn joined(&mut self, at: Duration) {
        self.joined = nanos(at);
    }
}

/// The log, open for writing.
pub struct Audit {
    path: PathBuf,
    cap: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<File>,
    opened: usize,
    in_use: usize,
    peak: usize,
    failed: Option<io::Error>,
}

/// A writer at the end of the log.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

impl Audit {
    /// A new log at `path`, which must not exist.
    pub fn create(path: &Path) -> io::Result<Self> {
        File::create_new(path)?;
        Ok(Self {
            path: path.into(),
            cap: Semaphore::new(WRITERS),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most writers that were in use at once.
    pub fn peak(&self) -> usize {
        self.state().peak
    }

    /// The number of writers opened. A caller that finds none idle opens one: only the semaphore bounds them.
    pub fn opened(&self) -> usize {
        self.state().opened
    }

    pub fn write_limits(&self, limits: &Limits) -> io::Result<()> {
        write_limits(&mut open(&self.path)?, limits)
    }

    /// Writes one row: waits in the queue for a writer, and holds that while it writes.
    pub async fn write(&self, pace: &Pace, row: &Row) {
        let Ok(_permit) = self.cap.acquire().await else {
            unreachable!("the cap is never closed");
        };
        let idle = {
            let mut state = self.state();
            state.in_use += 1;
            state.peak = state.peak.max(state.in_use);
            let idle = state.idle.pop();
            state.opened += usize::from(idle.is_none());
            idle
        };
        let writer = pace.blocking(|| {
            let mut writer = idle.map_or_else(|| open(&self.path), Ok)?;
            write_row(&mut writer, row)?;
            Ok(writer)
        });
        pace.sleep(COMMIT).await;
        let mut state = self.state();
        state.in_use -= 1;
        match writer {
            Ok(writer) => state.idle.push(writer),
            Err(error) => drop(state.failed.get_or_insert(error)),
        }
    }

    /// Says whether every row was written.
    pub fn finish(&self) -> Result<(), Box<dyn Error>> {
        match self.state().failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// Appends a line by one call of the system, so that lines of writers beside each other stay whole.
fn write_line(file: &mut File, fields: &[String]) -> io::Result<()> {
    let mut line = csv::Writer::from_writer(Vec::new());
    line.write_record(fields)?;
    file.write_all(&line.into_inner().map_err(csv::IntoInnerError::into_error)?)
}

fn write_limits(file: &mut File, limits: &Limits) -> io::Result<()> {
    let numbers = [
        &limits.requests[..],
        &limits.tokens,
        &limits.window,
        &[limits.in_flight, limits.max_wait, limits.arrived, limits.trace_tokens],
        &[limits.lateness, i64::from(limits.live), limits.speed],
    ];
    let mut fields = vec!["limits".to_owned(), limits.tenant.clone()];
    fields.extend(numbers.concat().iter().map(i64::to_string));
    write_line(file, &fields)
}

/// Appends a row.
pub fn write_row(file: &mut File, row: &Row) -> io::Result<()> {
    let number = |number: Option<i64>| number.map_or_else(String::new, |number| number.to_string());
    write_line(
        file,
        &[
            "request".to_owned(),
            row.tenant.clone(),
            row.id.to_string(),
            row.arrived.to_string(),
            row.joined.to_string(),
            number(row.counted),
            number(row.noted),
            row.ended_wait.to_string(),
            row.leg.clone().unwrap_or_default(),
            row.reason.clone().unwrap_or_default(),
            row.estimate.to_string(),
            row.context.to_string(),
            row.generated.to_string(),
            number(row.admitted_order),
            number(row.finished_order),
            number(row.finished),
            number(row.settled),
        ],
    )
}

/// The fields of a line, in order.
struct Fields<'a>(csv::StringRecordIter<'a>);

impl<'a> Fields<'a> {
    fn text(&mut self) -> Result<&'a str, Box<dyn Error>> {
        self.0.next().ok_or_else(|| "a line ends too early".into())
    }

    fn optional_text(&mut self) -> Result<Option<String>, Box<dyn Error>> {
        Ok(Some(self.text()?).filter(|text| !text.is_empty()).map(str::to_owned))
    }

    fn number(&mut self) -> Result<i64, Box<dyn Error>> {
        let text = self.text()?;
        text.parse().map_err(|_| format!("`{text}` is no number").into())
    }

    fn optional(&mut self) -> Result<Option<i64>, Box<dyn Error>> {
        let text = self.text()?;
        let number = (!text.is_empty()).then(|| text.parse()).transpose();
        number.map_err(|_| format!("`{text}` is no number").into())
    }

    fn limits(&mut self) -> Result<Limits, Box<dyn Error>> {
        Ok(Limits {
            tenant: self.text()?.into(),
            requests: [self.number()?, self.number()?, self.number()?],
            tokens: [self.number()?, self.number()?, self.number()?],
            window: [self.number()?, self.number()?],
            in_flight: self.number()?,
            max_wait: self.number()?,
            arrived: self.number()?,
            trace_tokens: self.number()?,
            lateness: self.number()?,
            live: self.number()? != 0,
            speed: self.number()?,
        })
    }

    fn row(&mut self) -> Result<Row, Box<dyn Error>> {
        Ok(Row {
            tenant: self.text()?.into(),
            id: self.number()?,
            arrived: self.number()?,
            joined: self.number()?,
            counted: self.optional()?,
            noted: self.optional()?,
            ended_wait: self.number()?,
            leg: self.optional_text()?,
            reason: self.optional_text()?,
            estimate: self.number()?,
            context: self.number()?,
            generated: self.number()?,
            admitted_order: self.optional()?,
            finished_order: self.optional()?,
            finished: self.optional()?,
            settled: self.optional()?,
        })
    }
}

/// Reads a whole log back: limits and rows, in order of tenants and ids.
pub fn read(path: &Path) -> Result<(Vec<Limits>, Vec<Row>), Box<dyn Error>> {
    let (mut limits, mut rows) = (Vec::new(), Vec::new());
    let lines = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_path(path)?;
    for line in lines.into_records() {
        let line = line?;
        let mut fields = Fields(line.iter());
        match fields.text()? {
            "limits" => limits.push(fields.limits()?),
            "request" => rows.push(fields.row()?),
            other => return Err(format!("a line begins with `{other}`").into()),
        }
    }
    limits.sort_by(|a: &Limits, b| a.tenant.cmp(&b.tenant));
    rows.sort_by(|a: &Row, b| (&a.tenant, a.id).cmp(&(&b.tenant, b.id)));
    Ok((limits, rows))
}
