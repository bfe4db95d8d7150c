//! The audit log: one row per request in an SQLite file, whose connections are capped by a semaphore.

use super::pace::Pace;
use super::witness::Noted;
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate::{Reason, Semaphore};

/// How many connections may be open for writing at once.
pub const CONNECTIONS: usize = 4;
/// How long a connection is held beyond the commit itself, in the trace's time. It makes the cap bind.
const COMMIT: Duration = Duration::from_millis(25);

const SCHEMA: &str = "
    CREATE TABLE limits (
        tenant TEXT PRIMARY KEY,
        requests_count INTEGER NOT NULL, requests_period_ns INTEGER NOT NULL, requests_burst INTEGER NOT NULL,
        tokens_count INTEGER NOT NULL, tokens_period_ns INTEGER NOT NULL, tokens_burst INTEGER NOT NULL,
        window_count INTEGER NOT NULL, window_ns INTEGER NOT NULL,
        in_flight INTEGER NOT NULL, max_wait_ns INTEGER NOT NULL,
        arrived INTEGER NOT NULL, trace_tokens INTEGER NOT NULL,
        lateness_ns INTEGER NOT NULL, live INTEGER NOT NULL, speed INTEGER NOT NULL
    );
    CREATE TABLE requests (
        tenant TEXT NOT NULL, id INTEGER NOT NULL, arrived_ns INTEGER NOT NULL, joined_ns INTEGER NOT NULL,
        counted_ns INTEGER, noted_ns INTEGER, ended_wait_ns INTEGER NOT NULL, leg TEXT, reason TEXT,
        estimate INTEGER NOT NULL, context INTEGER NOT NULL, generated INTEGER NOT NULL,
        admitted_order INTEGER, finished_order INTEGER, finished_ns INTEGER,
        settled_ns INTEGER,
        PRIMARY KEY (tenant, id)
    ) WITHOUT ROWID;
";

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
    idle: Vec<Connection>,
    opened: usize,
    in_use: usize,
    peak: usize,
    failed: Option<rusqlite::Error>,
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;")?;
    Ok(connection)
}

impl Audit {
    /// A new log at `path`, which must not exist.
    pub fn create(path: &Path) -> rusqlite::Result<Self> {
        let first = open(path)?;
        first.execute_batch(SCHEMA)?;
        Ok(Self {
            path: path.into(),
            cap: Semaphore::new(CONNECTIONS),
            state: Mutex::new(State {
                idle: vec![first],
                opened: 1,
                ..State::default()
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most connections that were in use at once.
    pub fn peak(&self) -> usize {
        self.state().peak
    }

    /// The number of connections opened. A caller that finds none idle opens one: only the semaphore bounds them.
    pub fn opened(&self) -> usize {
        self.state().opened
    }

    pub fn write_limits(&self, limits: &Limits) -> rusqlite::Result<()> {
        let ([r1, r2, r3], [t1, t2, t3], [w1, w2]) = (limits.requests, limits.tokens, limits.window);
        open(&self.path)?.execute(
            "INSERT INTO limits VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            params![
                limits.tenant,
                r1,
                r2,
                r3,
                t1,
                t2,
                t3,
                w1,
                w2,
                limits.in_flight,
                limits.max_wait,
                limits.arrived,
                limits.trace_tokens,
                limits.lateness,
                limits.live,
                limits.speed
            ],
        )?;
        Ok(())
    }

    /// Writes one row: waits for its turn at a connection, and holds that while it commits.
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
        let connection = pace.blocking(|| {
            let connection = idle.map_or_else(|| open(&self.path), Ok)?;
            insert(&connection, row)?;
            Ok(connection)
        });
        pace.sleep(COMMIT).await;
        let mut state = self.state();
        state.in_use -= 1;
        match connection {
            Ok(connection) => state.idle.push(connection),
            Err(error) => drop(state.failed.get_or_insert(error)),
        }
    }

    /// Says whether every row was written.
    pub fn finish(&self) -> Result<(), Box<dyn std::error::Error>> {
        match self.state().failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

fn insert(connection: &Connection, row: &Row) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO requests VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")?
        .execute(params![
            row.tenant,
            row.id,
            row.arrived,
            row.joined,
            row.counted,
            row.noted,
            row.ended_wait,
            row.leg,
            row.reason,
            row.estimate,
            row.context,
            row.generated,
            row.admitted_order,
            row.finished_order,
            row.finished,
            row.settled
        ])?;
    Ok(())
}

/// Reads a whole log back: limits and rows, in order of tenants and ids.
pub fn read(path: &Path) -> rusqlite::Result<(Vec<Limits>, Vec<Row>)> {
    let connection = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut query = connection.prepare("SELECT * FROM limits ORDER BY tenant")?;
    let limits = query.query_map([], |row| {
        Ok(Limits {
            tenant: row.get(0)?,
            requests: [row.get(1)?, row.get(2)?, row.get(3)?],
            tokens: [row.get(4)?, row.get(5)?, row.get(6)?],
            window: [row.get(7)?, row.get(8)?],
            in_flight: row.get(9)?,
            max_wait: row.get(10)?,
            arrived: row.get(11)?,
            trace_tokens: row.get(12)?,
            lateness: row.get(13)?,
            live: row.get(14)?,
            speed: row.get(15)?,
        })
    })?;
    let limits = limits.collect::<rusqlite::Result<_>>()?;
    let mut query = connection.prepare("SELECT * FROM requests ORDER BY tenant, id")?;
    let rows = query.query_map([], |row| {
        Ok(Row {
            tenant: row.get("tenant")?,
            id: row.get("id")?,
            arrived: row.get("arrived_ns")?,
            joined: row.get("joined_ns")?,
            counted: row.get("counted_ns")?,
            noted: row.get("noted_ns")?,
            ended_wait: row.get("ended_wait_ns")?,
            leg: row.get("leg")?,
            reason: row.get("reason")?,
            estimate: row.get("estimate")?,
            context: row.get("context")?,
            generated: row.get("generated")?,
            admitted_order: row.get("admitted_order")?,
            finished_order: row.get("finished_order")?,
            finished: row.get("finished_ns")?,
            settled: row.get("settled_ns")?,
        })
    })?;
    Ok((limits, rows.collect::<rusqlite::Result<_>>()?))
}
