//! The connection of a [`Postgres`](super::Postgres).

use super::Parameter;
use crate::subscriptions::Subscriptions;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Row, Socket, Statement};
use tollgate::remote::StoreError;

/// What is installed, in order.
pub(super) const SOURCES: [&str; 4] = [
    include_str!("install.sql"),
    include_str!("permits.sql"),
    include_str!("rates.sql"),
    include_str!("steps.sql"),
];

/// The most connections of a process: the present one, and those that were given up and whose server processes have not ended. Without
/// this bound a server that does not answer would have a process for each attempt, until it refuses other programs.
const MOST_CONNECTIONS: usize = 8;
/// How long a connection that was given up stays open for its server process to end. One to a server that has gone never hears of it.
const LINGER: Duration = Duration::from_secs(30);

/// Makes a connection when it is first needed, and another when it breaks, or does not answer in time.
///
/// A session that is this process's own has time-outs: the server ends a statement by itself when no caller waits for it any more, and
/// the wait for a locked row before that, so that it holds up the calls behind it for a part of their time only. A session of a pooler
/// has none, since others use it too.
pub(super) struct Link {
    pub(super) config: Config,
    #[cfg(feature = "postgres-tls")]
    pub(super) tls: Option<tokio_postgres_rustls::MakeRustlsConnect>,
    pub(super) schema: Box<str>,
    /// How long a call may take.
    pub(super) timeout: Duration,
    /// A commit waits for the standbys that the server waits for.
    pub(super) durable: bool,
    /// Reports whether everything is installed, as `t`, the isolation level, and the standbys that a commit waits for. Sets time-outs.
    pub(super) look: Box<str>,
    pub(super) install: Box<str>,
    /// Listens for notifications.
    pub(super) listen: Option<Box<str>>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) current: Mutex<Option<Arc<Live>>>,
    pub(super) connections: Arc<Semaphore>,
}

/// As many connections as a process may have.
pub(super) fn connections() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_CONNECTIONS))
}

/// What a new session sets: a statement ends after `limit`, and its wait for a lock after half of it.
pub(super) fn time_outs(limit: Duration) -> String {
    let millis = limit.as_millis().max(1);
    let lock = (millis / 2).max(1);
    format!(", set_config('statement_timeout', '{millis}', false), set_config('lock_timeout', '{lock}', false)")
}

/// A connection, and the task that reads it.
pub(super) struct Live {
    client: Client,
    reader: AbortHandle,
    runtime: Handle,
    /// A call may be cancelled at the server.
    cancels: bool,
    /// The first call since the last answer. Its caller may have dropped it.
    unanswered: parking_lot::Mutex<Option<Instant>>,
    /// By their text.
    prepared: parking_lot::Mutex<HashMap<Box<str>, Statement>>,
}

impl Live {
    /// False when a call has waited for so long, and none was answered meanwhile.
    fn answers_within(&self, limit: Duration) -> bool {
        let unanswered = *self.unanswered.lock();
        unanswered.is_none_or(|since| since.elapsed() < limit)
    }

    /// The statement as the server knows it, once it was told.
    async fn prepared(&self, text: &str, parameters: &[Parameter<'_>]) -> Result<Statement, Error> {
        let known = self.prepared.lock().get(text).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let types: Vec<_> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        let statement = self.client.prepare_typed(text, &types).await?;
        self.prepared.lock().insert(text.into(), statement.clone());
        Ok(statement)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // It ends when the calls that were sent are answered, so that its server process has ended too.
        let reader = self.reader.clone();
        self.runtime.spawn(async move {
            sleep(LINGER).await;
            reader.abort();
        });
    }
}

impl Link {
    /// Carries out a statement. Where nothing is listened for it is prepared for this call only: poolers may lead each call to another
    /// connection.
    pub(super) async fn call(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        let limit = self.timeout;
        let late = |_| StoreError::TimedOut { after: limit };
        let live = timeout(limit, self.live()).await.map_err(late)??;
        live.unanswered.lock().get_or_insert_with(Instant::now);
        let answer = timeout(limit, async {
            if self.listen.is_none() {
                return live.client.query_typed(statement, parameters).await;
            }
            let prepared = live.prepared(statement, parameters).await?;
            let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
            live.client.query(&prepared, &values).await
        });
        let Ok(answer) = answer.await else {
            if !live.answers_within(limit) {
                self.give_up(&live).await;
            }
            return Err(StoreError::TimedOut { after: limit });
        };
        *live.unanswered.lock() = None;
        match answer {
            Err(error) => {
                if leads_astray(error.code()) {
                    self.give_up(&live).await;
                }
                Err(failed(&error, limit))
            }
            Ok(rows) => Ok(rows),
        }
    }

    /// The connection: the present one, or a new one. Answers come in order, so that one which does not answer in time is of no use.
    async fn live(&self) -> Result<Arc<Live>, StoreError> {
        let mut current = self.current.lock().await;
        let answers = |live: &&Arc<Live>| !live.client.is_closed() && live.answers_within(self.timeout);
        if let Some(live) = current.as_ref().filter(answers) {
            return Ok(Arc::clone(live));
        }
        if let Some(live) = current.take() {
            self.cancel(&live);
        }
        let live = Arc::new(self.connect().await?);
        *current = Some(Arc::clone(&live));
        Ok(live)
    }

    /// The next call takes another connection than this.
    async fn give_up(&self, live: &Arc<Live>) {
        let mut current = self.current.lock().await;
        if let Some(live) = current.take_if(|known| Arc::ptr_eq(known, live)) {
            self.cancel(&live);
        }
    }

    /// Has the server cancel the call that has kept a connection from answering.
    fn cancel(&self, live: &Live) {
        if !live.cancels || live.client.is_closed() || live.unanswered.lock().is_none() {
            return;
        }
        let token = live.client.cancel_token();
        #[cfg(feature = "postgres-tls")]
        let tls = self.tls.clone();
        tokio::spawn(timeout(LINGER, async move {
            // If it fails, the time-outs of the session end the call.
            #[cfg(feature = "postgres-tls")]
            if let Some(tls) = tls {
                return drop(token.cancel_query(tls).await);
            }
            drop(token.cancel_query(NoTls).await);
        }));
    }

    async fn connect(&self) -> Result<Live, StoreError> {
        let connection = Arc::clone(&self.connections).try_acquire_owned().map_err(|_| {
            let why = format!("{MOST_CONNECTIONS} connections wait for calls that were given up");
            StoreError::Unreachable { why: why.into() }
        })?;
        #[cfg(feature = "postgres-tls")]
        let (client, reader) = match &self.tls {
            Some(tls) => self.open(tls.clone(), connection).await?,
            None => self.open(NoTls, connection).await?,
        };
        #[cfg(not(feature = "postgres-tls"))]
        let (client, reader) = self.open(NoTls, connection).await?;
        let mut live = Live {
            client,
            reader,
            runtime: Handle::current(),
            cancels: false,
            unanswered: parking_lot::Mutex::default(),
            prepared: parking_lot::Mutex::default(),
        };
        // A cancelled commit does not wait for standbys any more, and what it has granted is granted.
        live.cancels = !self.prepare(&live.client).await? || !self.durable;
        // What was sent before this connection was lost.
        self.subscriptions.missed_all();
        Ok(live)
    }

    async fn open<T>(&self, tls: T, slot: OwnedSemaphorePermit) -> Result<(Client, AbortHandle), StoreError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = self
            .config
            .connect(tls)
            .await
            .map_err(|error| failed(&error, self.timeout))?;
        let subscriptions = Arc::clone(&self.subscriptions);
        let reader = tokio::spawn(async move {
            read(connection, subscriptions).await;
            drop(slot);
        });
        Ok((client, reader.abort_handle()))
    }

    /// Installs what is missing, and listens. True when a commit may wait for standbys.
    async fn prepare(&self, client: &Client) -> Result<bool, StoreError> {
        let failed = |error: Error| failed(&error, self.timeout);
        let found = client.query_typed(&self.look, &[]).await.map_err(failed)?;
        let found = found
            .first()
            .map(|row| (row.try_get(0), row.try_get(1), row.try_get(2)));
        let Some((Ok::<bool, _>(installed), Ok::<String, _>(isolation), Ok::<String, _>(standbys))) = found else {
            let given = "no state of the installation".into();
            return Err(StoreError::Answer { given });
        };
        if isolation != "read committed" {
            let why = format!("default_transaction_isolation is `{isolation}`, and `read committed` is needed");
            return Err(StoreError::Refused { why: why.into() });
        }
        if !installed && let Err(error) = client.batch_execute(&self.install).await {
            if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
                return Err(failed(error));
            }
            let Self { schema, .. } = self;
            let why = format!(
                "{}; to install the store, the user has to own the schema `{schema}`: CREATE SCHEMA {schema} AUTHORIZATION …",
                text(&error)
            );
            return Err(StoreError::Refused { why: why.into() });
        }
        if let Some(listen) = &self.listen {
            client.batch_execute(listen).await.map_err(failed)?;
        }
        Ok(!standbys.is_empty())
    }
}

/// Reads a connection until it ends, and passes its notifications on.
async fn read<S, T>(mut connection: Connection<S, T>, subscriptions: Arc<Subscriptions>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(said) = message {
            subscriptions.hear(said.payload());
        }
    }
    subscriptions.missed_all();
}

/// Whether the server does not decide any more, or lacks what was installed or prepared: connecting anew finds its successor, or installs
/// it. So are whole classes: errors of connections, of transactions and statements that a pooler has mixed up, and of servers that stop, or
/// lack something.
fn leads_astray(code: Option<&SqlState>) -> bool {
    // No such function, table or schema; a statement of that name is there.
    const CODES: [&str; 4] = ["42883", "42P01", "3F000", "42P05"];
    const CLASSES: [&str; 7] = ["08", "25", "26", "53", "57", "58", "XX"];
    let Some(code) = code.map(SqlState::code) else {
        return true;
    };
    let is_of_class = CLASSES.iter().any(|class| code.starts_with(class));
    (CODES.contains(&code) || is_of_class) && !is_late(code)
}

/// The server has ended a call by itself: a row was locked for too long, or the call took too long.
fn is_late(code: &str) -> bool {
    ["55P03", "57014"].contains(&code)
}

fn failed(error: &Error, limit: Duration) -> StoreError {
    of_code(error.code(), text(error), limit)
}

fn of_code(state: Option<&SqlState>, why: Box<str>, limit: Duration) -> StoreError {
    match state.map(SqlState::code) {
        Some(code) if is_late(code) => StoreError::TimedOut { after: limit },
        // The transaction was rolled back: others changed the same rows.
        Some(code) if code.starts_with("40") => StoreError::Busy { after: Duration::ZERO },
        Some(code) if !leads_astray(state) && !code.starts_with("55") => StoreError::Refused { why },
        _ => StoreError::Unreachable { why },
    }
}

/// The error, and what caused it. Neither has secrets.
pub(super) fn text(error: &Error) -> Box<str> {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}").into(),
        None => error.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_pass_by_themselves_are_told_from_those_that_do_not() {
        let of = |code: &str| of_code(Some(&SqlState::from_code(code)), "why".into(), LINGER);
        for code in [
            "08006", "25006", "25P02", "26000", "42P05", "53200", "53300", "55006", "57P01", "57P03", "58030", "XX000",
            "42883",
        ] {
            assert!(matches!(of(code), StoreError::Unreachable { .. }), "{code}");
        }
        for code in ["40001", "40P01"] {
            assert!(matches!(of(code), StoreError::Busy { .. }), "{code}");
        }
        for code in ["55P03", "57014"] {
            assert_eq!(of(code), StoreError::TimedOut { after: LINGER }, "{code}");
            assert!(
                !leads_astray(Some(&SqlState::from_code(code))),
                "the connection is of use"
            );
        }
        for code in ["28P01", "28000", "3D000", "42501", "22P02", "23514"] {
            assert!(matches!(of(code), StoreError::Refused { .. }), "{code}");
        }
        assert!(matches!(
            of_code(None, "it broke".into(), LINGER),
            StoreError::Unreachable { .. }
        ));
    }
}
