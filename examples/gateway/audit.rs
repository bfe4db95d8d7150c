//! The audit log: one row per request in an SQLite file, whose connections are capped by a semaphore.

use rusqlite::{Connection, params};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;
use tollgate::time::Sleep;
use tollgate::{ManualClock, Reason, Semaphore};

/// How many connections may be open for writing at once.
pub const CONNECTIONS: usize = 4;
/// How long a commit takes, in virtual time: what makes the cap bind.
const COMMIT: Duration = Duration::from_millis(25);

const SCHEMA: &str = "
    CREATE TABLE limits (
        tenant TEXT PRIMARY KEY,
        requests_count INTEGER NOT NULL, requests_period_ns INTEGER NOT NULL, requests_burst INTEGER NOT NULL,
        tokens_count INTEGER NOT NULL, tokens_period_ns INTEGER NOT NULL, tokens_burst INTEGER NOT NULL,
        window_count INTEGER NOT NULL, window_ns INTEGER NOT NULL,
        in_flight INTEGER NOT NULL, max_wait_ns INTEGER NOT NULL,
        arrived INTEGER NOT NULL, trace_tokens INTEGER NOT NULL
    );
    CREATE TABLE requests (
        tenant TEXT NOT NULL, id INTEGER NOT NULL, arrived_ns INTEGER NOT NULL,
        ended_wait_ns INTEGER NOT NULL, leg TEXT, reason TEXT,
        estimate INTEGER NOT NULL, context INTEGER NOT NULL, generated INTEGER NOT NULL,
        admitted_order INTEGER, finished_order INTEGER, finished_ns INTEGER,
        PRIMARY KEY (tenant, id)
    ) WITHOUT ROWID;
";

/// A tenant's limits, as whole numbers: count, period in nanoseconds, burst.
pub struct Limits {
    pub tenant: String,
    pub requests: [i64; 3],
    pub tokens: [i64; 3],
    pub window: [i64; 2],
    pub in_flight: i64,
    pub max_wait: i64,
    pub arrived: i64,
    pub trace_tokens: i64,
}

/// What the log says of one request.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub tenant: String,
    pub id: i64,
    pub arrived: i64,
    /// Admitted or refused.
    pub ended_wait: i64,
    pub leg: Option<String>,
    pub reason: Option<String>,
    pub estimate: i64,
    pub context: i64,
    pub generated: i64,
    pub admitted_order: Option<i64>,
    pub finished_order: Option<i64>,
    pub finished: Option<i64>,
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

    pub fn admitted(&mut self, order: i64, at: Duration) {
        self.admitted_order = Some(order);
        self.ended_wait = nanos(at);
    }

    pub fn finished(&mut self, order: i64, at: Duration) {
        self.finished_order = Some(order);
        self.finished = Some(nanos(at));
    }
}

/// The log, open for writing.
pub struct Audit {
    cap: Semaphore,
    idle: RefCell<Vec<Connection>>,
    in_use: Cell<usize>,
    peak: Cell<usize>,
    failed: RefCell<Option<rusqlite::Error>>,
}

impl Audit {
    /// A new log at `path`, which must not exist.
    pub fn create(path: &Path) -> rusqlite::Result<Self> {
        let open = || {
            let connection = Connection::open(path)?;
            connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;")?;
            Ok(connection)
        };
        let idle = (0..CONNECTIONS).map(|_| open()).collect::<rusqlite::Result<Vec<_>>>()?;
        idle[0].execute_batch(SCHEMA)?;
        Ok(Self {
            cap: Semaphore::new(CONNECTIONS),
            idle: RefCell::new(idle),
            in_use: Cell::new(0),
            peak: Cell::new(0),
            failed: RefCell::new(None),
        })
    }

    /// The most connections that were in use at once.
    pub fn peak(&self) -> usize {
        self.peak.get()
    }

    pub fn write_limits(&self, limits: &Limits) -> rusqlite::Result<()> {
        let ([r1, r2, r3], [t1, t2, t3], [w1, w2]) = (limits.requests, limits.tokens, limits.window);
        self.idle.borrow()[0].execute(
            "INSERT INTO limits VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
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
                limits.trace_tokens
            ],
        )?;
        Ok(())
    }

    /// Writes one row: waits for a connection, and holds it while it commits.
    pub async fn write(&self, clock: &ManualClock, row: &Row) {
        let Ok(_permit) = self.cap.acquire().await else {
            unreachable!("the cap is never closed");
        };
        let Some(connection) = self.idle.borrow_mut().pop() else {
            unreachable!("there are as many connections as permits");
        };
        self.in_use.set(self.in_use.get() + 1);
        self.peak.set(self.peak.get().max(self.in_use.get()));
        let written = connection
            .prepare_cached("INSERT INTO requests VALUES (?,?,?,?,?,?,?,?,?,?,?,?)")
            .and_then(|mut insert| {
                insert.execute(params![
                    row.tenant,
                    row.id,
                    row.arrived,
                    row.ended_wait,
                    row.leg,
                    row.reason,
                    row.estimate,
                    row.context,
                    row.generated,
                    row.admitted_order,
                    row.finished_order,
                    row.finished
                ])
            });
        if let Err(error) = written {
            self.failed.borrow_mut().get_or_insert(error);
        }
        Sleep::until(clock, clock.after(clock.now(), COMMIT)).await;
        self.in_use.set(self.in_use.get() - 1);
        self.idle.borrow_mut().push(connection);
    }

    /// Says whether every row was written.
    pub fn finish(&self) -> Result<(), Box<dyn std::error::Error>> {
        match self.failed.borrow_mut().take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
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
        })
    })?;
    let limits = limits.collect::<rusqlite::Result<_>>()?;
    let mut query = connection.prepare("SELECT * FROM requests ORDER BY tenant, id")?;
    let rows = query.query_map([], |row| {
        Ok(Row {
            tenant: row.get(0)?,
            id: row.get(1)?,
            arrived: row.get(2)?,
            ended_wait: row.get(3)?,
            leg: row.get(4)?,
            reason: row.get(5)?,
            estimate: row.get(6)?,
            context: row.get(7)?,
            generated: row.get(8)?,
            admitted_order: row.get(9)?,
            finished_order: row.get(10)?,
            finished: row.get(11)?,
        })
    })?;
    Ok((limits, rows.collect::<rusqlite::Result<_>>()?))
}
