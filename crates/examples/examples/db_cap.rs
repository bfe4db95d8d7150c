//! Caps the connections to a database, and changes the cap while 64 workers use them.
//!
//! The semaphore stands before the connection: the holder of a permit connects, queries, disconnects and releases the
//! permit. Every few queries the cap changes, also to less than what is open. The open connections are counted apart from
//! the semaphore, and none may be opened beyond the cap in force. Some callers are cancelled half-way, which must not
//! cost a permit.
//!
//! ```text
//! cargo run --release --example db_cap                                   # SQLite, in a temporary folder
//! cargo run --release --example db_cap -- --postgres postgres://user@localhost/db
//! ```
//! Exit code 1: a query failed, or rows are missing.

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use rusqlite::Connection;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use tollgate::{OwnedSemaphorePermit, Semaphore};

/// Runs real queries behind a cap on connections that changes meanwhile.
#[derive(Parser)]
struct Args {
    /// Uses this PostgreSQL server; SQLite in a temporary folder otherwise.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// How many workers there are.
    #[arg(long, default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    workers: usize,
    /// How many connections each of them needs, one after the other.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    each: usize,
}

type Failure = Box<dyn Error + Send + Sync>;

/// The caps that are gone through, over and over.
const CAPS: [usize; 6] = [12, 3, 8, 1, 16, 5];
/// After how many queries the cap changes.
const EVERY: usize = 16;

/// The cap, and what is known of the connections without asking it.
struct Gate {
    connections: Arc<Semaphore>,
    open: AtomicUsize,
    peak: AtomicUsize,
    queries: AtomicUsize,
    /// Admissions during which the cap did not move.
    undisturbed: AtomicUsize,
    /// Twice the number of changes of the cap, and one more while it is being changed.
    changes: AtomicUsize,
    changing: Mutex<()>,
}

/// The right to one connection. It goes wherever the connection goes, and is dropped after it.
struct Slot {
    gate: Arc<Gate>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    /// The permit goes back after this.
    fn drop(&mut self) {
        self.gate.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn new() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(CAPS[0])),
            open: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            queries: AtomicUsize::new(0),
            undisturbed: AtomicUsize::new(0),
            changes: AtomicUsize::new(0),
            changing: Mutex::new(()),
        }
    }

    /// Waits for the right to one connection.
    ///
    /// All connections that are counted at the end were admitted by then, and the last of them no earlier than this one:
    /// so together they are within a cap that was in force while this was waiting.
    async fn slot(self: Arc<Self>) -> Result<Slot, Failure> {
        let before = self.changes.load(Ordering::SeqCst);
        let permit = Arc::clone(&self.connections).acquire_owned().await?;
        let now = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        let slot = Slot {
            gate: self,
            _permit: permit,
        };
        let gate = &slot.gate;
        let after = gate.changes.load(Ordering::SeqCst);
        let cap = (before / 2..=after.div_ceil(2)).map(cap_after).max().unwrap_or(0);
        assert!(now <= cap, "{now} connections are open, and {cap} may be");
        gate.peak.fetch_max(now, Ordering::SeqCst);
        if before == after && before.is_multiple_of(2) {
            gate.undisturbed.fetch_add(1, Ordering::SeqCst);
        }
        Ok(slot)
    }

    /// A query is over. Every few of them the cap changes.
    fn count(&self) {
        let done = self.queries.fetch_add(1, Ordering::SeqCst) + 1;
        if done.is_multiple_of(EVERY) {
            let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let changes = self.changes.fetch_add(1, Ordering::SeqCst) / 2 + 1;
            self.connections.set_limit(cap_after(changes));
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn cap_after(changes: usize) -> usize {
    CAPS[changes % CAPS.len()]
}

#[derive(Clone)]
enum Database {
    Sqlite(PathBuf),
    Postgres { url: String, table: String },
}

impl Database {
    async fn create(&self) -> Result<(), Failure> {
        match self {
            Self::Sqlite(file) => {
                let connection = Connection::open(file)?;
                connection.pragma_update(None, "journal_mode", "wal")?;
                connection.execute_batch("CREATE TABLE work (worker INTEGER, step INTEGER)")?;
                Ok(())
            }
            Self::Postgres { table, .. } => {
                let sql = format!("CREATE TABLE {table} (worker BIGINT, step BIGINT)");
                self.postgres(sql).await.map(drop)
            }
        }
    }

    /// Connects, writes a row, counts the worker's rows, disconnects.
    async fn query(&self, slot: Slot, worker: usize, step: usize) -> Result<i64, Failure> {
        match self {
            Self::Sqlite(file) => {
                let file = file.clone();
                // A blocking task runs on even without a waiter, so the slot goes with it.
                tokio::task::spawn_blocking(move || {
                    let _slot = slot;
                    sqlite(&file, worker, step)
                })
                .await?
            }
            Self::Postgres { table, .. } => {
                let sql = format!(
                    "INSERT INTO {table} VALUES ({worker}, {step}); SELECT count(*) FROM {table} WHERE worker = {worker}"
                );
                let rows = self.postgres(sql).await;
                drop(slot);
                rows
            }
        }
    }

    /// How many rows the first `workers` have written. Nothing is left behind on a server.
    async fn finish(&self, workers: usize) -> Result<i64, Failure> {
        match self {
            Self::Sqlite(file) => {
                let sql = "SELECT count(*) FROM work WHERE worker < ?1";
                Ok(Connection::open(file)?.query_row(sql, [workers as i64], |row| row.get(0))?)
            }
            Self::Postgres { table, .. } => {
                let sql = format!("SELECT count(*) FROM {table} WHERE worker < {workers}; DROP TABLE {table}");
                self.postgres(sql).await
            }
        }
    }

    /// The number in the last row that `sql` returns, or zero, over a connection of its own.
    async fn postgres(&self, sql: String) -> Result<i64, Failure> {
        let Self::Postgres { url, .. } = self else { return Ok(0) };
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        let query = async move {
            let mut number = 0;
            for message in client.simple_query(&sql).await? {
                if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                    number = row.get(0).unwrap_or_default().parse()?;
                }
            }
            Ok(number)
        };
        // The client goes with the query, and the connection ends after it: both are over when this is.
        let (number, ended) = tokio::join!(query, connection);
        ended?;
        number
    }
}

fn sqlite(file: &Path, worker: usize, step: usize) -> Result<i64, Failure> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    // What is at stake here is the number of connections, not power failures.
    connection.pragma_update(None, "synchronous", "off")?;
    connection.execute("INSERT INTO work VALUES (?1, ?2)", (worker as i64, step as i64))?;
    let sql = "SELECT count(*) FROM work WHERE worker = ?1";
    Ok(connection.query_row(sql, [worker as i64], |row| row.get(0))?)
}

async fn work(gate: Arc<Gate>, database: Database, worker: usize, each: usize) -> Result<(), Failure> {
    for step in 1..=each {
        let slot = Arc::clone(&gate).slot().await?;
        let rows = database.query(slot, worker, step).await?;
        assert_eq!(rows, step as i64, "worker {worker} has written {step} rows");
        gate.count();
    }
    Ok(())
}

async fn run(args: &Args, database: &Database) -> Result<(), Failure> {
    database.create().await?;
    let gate = Arc::new(Gate::new());
    let (mut workers, mut cancelled) = (JoinSet::new(), JoinSet::new());
    for worker in 0..args.workers {
        workers.spawn(work(Arc::clone(&gate), database.clone(), worker, args.each));
        let (gate, database) = (Arc::clone(&gate), database.clone());
        let cancelled_worker = args.workers + worker;
        cancelled.spawn(async move { database.query(gate.slot().await?, cancelled_worker, 1).await });
    }
    // At any stage: queued, connecting, or done.
    tokio::task::yield_now().await;
    cancelled.shutdown().await;
    while let Some(done) = workers.join_next().await {
        done??;
    }
    // The holder of all permits is alone. A connection of a cancelled caller may only now be closed.
    let limit = gate.connections.limit();
    let all = gate.connections.acquire_many(limit as u32).await?;
    assert_eq!((gate.connections.in_use(), gate.connections.debt()), (limit, 0));
    assert_eq!(gate.open.load(Ordering::SeqCst), 0);
    drop(all);

    let (rows, queries) = (database.finish(args.workers).await?, args.workers * args.each);
    if rows != queries as i64 {
        return Err(format!("{rows} rows are there, {queries} were written").into());
    }
    let changes = gate.changes.load(Ordering::SeqCst) / 2;
    assert_eq!(changes, queries / EVERY);
    assert!(changes >= 20 || queries < 20 * EVERY);
    println!(
        "{queries} queries by {} workers; the cap changed {changes} times, between {} and {}; at most {} connections were \
         open, and every admission was within the cap, {} of them while it stood still",
        args.workers,
        CAPS.into_iter().min().unwrap_or_default(),
        CAPS.into_iter().max().unwrap_or_default(),
        gate.peak.load(Ordering::SeqCst),
        gate.undisturbed.load(Ordering::SeqCst),
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let database = match &args.postgres {
        None => Database::Sqlite(folder.path().join("work.sqlite")),
        Some(url) => Database::Postgres {
            url: url.clone(),
            table: format!("tollgate_db_cap_{}", std::process::id()),
        },
    };
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(&args, &database))
}
