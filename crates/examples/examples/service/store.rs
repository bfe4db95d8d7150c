//! A database that bears few connections: a permit for each.

use crate::limits::{CONNECTIONS, Failure, Limits};
use rusqlite::Connection;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct Store {
    idle: Mutex<Vec<Connection>>,
}

impl Store {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let open = || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(std::time::Duration::from_secs(5))?;
            connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")?;
            Ok::<_, rusqlite::Error>(connection)
        };
        let idle = (0..CONNECTIONS).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
        idle[0].execute_batch("CREATE TABLE IF NOT EXISTS hits (path TEXT PRIMARY KEY, count INTEGER NOT NULL)")?;
        Ok(Self { idle: Mutex::new(idle) })
    }

    /// Counts a hit of `path`, and says how many there were.
    pub(crate) async fn hit(self: &Arc<Self>, limits: &Limits, path: String) -> Result<i64, Failure> {
        let permit = Arc::clone(&limits.connections).acquire_owned().await?;
        let store = Arc::clone(self);
        let query = tokio::task::spawn_blocking(move || {
            // The permit goes along: a cancelled caller leaves a query behind that still has its connection.
            let _permit = permit;
            let connection = store.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = connection.ok_or("more permits than connections")?;
            let upsert =
                "INSERT INTO hits VALUES (?1, 1) ON CONFLICT (path) DO UPDATE SET count = count + 1 RETURNING count";
            let count = connection
                .prepare_cached(upsert)
                .and_then(|mut statement| statement.query_row([&path], |row| row.get(0)));
            store
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
            Ok(count?)
        });
        query.await?
    }
}
