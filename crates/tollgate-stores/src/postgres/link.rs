//! The connection of a [`Postgres`](super::Postgres).

use super::Parameter;
use crate::subscriptions::Subscriptions;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
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

/// Makes a connection when it is first needed, and another when it breaks, or does not answer in time.
pub(super) struct Link {
    pub(super) config: Config,
    #[cfg(feature = "postgres-tls")]
    pub(super) tls: Option<tokio_postgres_rustls::MakeRustlsConnect>,
    pub(super) schema: Box<str>,
    /// Reports whether everything is installed, as `t`, and the isolation level.
    pub(super) look: Box<str>,
    pub(super) install: Box<str>,
    /// Listens for notifications.
    pub(super) listen: Option<Box<str>>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) current: Mutex<Option<Arc<Live>>>,
}

/// A connection, and the task that reads it.
pub(super) struct Live {
    client: Client,
    reader: AbortHandle,
    /// The first call since the last answer. Its caller may have dropped it.
    unanswered: parking_lot::Mutex<Option<Instant>>,
    /// By their text.
    prepared: parking_lot::Mutex<HashMap<Box<str>, Statement>>,
}

impl Live {
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
        // One that was given up may never be answered.
        self.reader.abort();
    }
}

impl Link {
    /// Carries out a statement. Where nothing is listened for it is prepared for this call only: poolers may lead each call to another
    /// connection.
    pub(super) async fn call(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        limit: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        let late = |_| StoreError::TimedOut { after: limit };
        let live = timeout(limit, self.live(limit)).await.map_err(late)??;
        live.unanswered.lock().get_or_insert_with(Instant::now);
        let answer = timeout(limit, async {
            if self.listen.is_none() {
                return live.client.query_typed(statement, parameters).await;
            }
            let prepared = live.prepared(statement, parameters).await?;
            let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
            live.client.query(&prepared, &values).await
        });
        let answer = answer.await.map_err(late)?;
        *live.unanswered.lock() = None;
        match answer {
            Err(error) => {
                if leads_astray(&error) {
                    self.give_up(&live).await;
                }
                Err(failed(&error))
            }
            Ok(rows) => Ok(rows),
        }
    }

    /// The connection: the present one, or a new one. Answers come in order, so that one which does not answer for this long is
    /// of no use.
    async fn live(&self, limit: Duration) -> Result<Arc<Live>, StoreError> {
        let mut current = self.current.lock().await;
        let answers = |live: &&Arc<Live>| {
            let unanswered = *live.unanswered.lock();
            !live.client.is_closed() && unanswered.is_none_or(|since| since.elapsed() < limit)
        };
        if let Some(live) = current.as_ref().filter(answers) {
            return Ok(Arc::clone(live));
        }
        *current = None;
        let live = Arc::new(self.connect().await?);
        *current = Some(Arc::clone(&live));
        Ok(live)
    }

    async fn give_up(&self, live: &Arc<Live>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, live)) {
            *current = None;
        }
    }

    async fn connect(&self) -> Result<Live, StoreError> {
        #[cfg(feature = "postgres-tls")]
        let (client, reader) = match &self.tls {
            Some(tls) => self.open(tls.clone()).await?,
            None => self.open(NoTls).await?,
        };
        #[cfg(not(feature = "postgres-tls"))]
        let (client, reader) = self.open(NoTls).await?;
        let live = Live {
            client,
            reader,
            unanswered: parking_lot::Mutex::default(),
            prepared: parking_lot::Mutex::default(),
        };
        self.prepare(&live.client).await?;
        // What was sent before this connection was lost.
        self.subscriptions.missed_all();
        Ok(live)
    }

    async fn open<T>(&self, tls: T) -> Result<(Client, AbortHandle), StoreError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = self.config.connect(tls).await.map_err(|error| failed(&error))?;
        let reader = tokio::spawn(read(connection, Arc::clone(&self.subscriptions)));
        Ok((client, reader.abort_handle()))
    }

    /// Installs what is missing, and listens.
    async fn prepare(&self, client: &Client) -> Result<(), StoreError> {
        let failed = |error: Error| failed(&error);
        let found = client.query_typed(&self.look, &[]).await.map_err(failed)?;
        let found = found.first().map(|row| (row.try_get(0), row.try_get(1)));
        let Some((Ok::<bool, _>(installed), Ok::<String, _>(isolation))) = found else {
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
        match &self.listen {
            Some(listen) => client.batch_execute(listen).await.map_err(failed),
            None => Ok(()),
        }
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

/// Whether the server does not decide any more, or lacks what was installed: connecting anew finds its successor, or installs
/// it. So are whole classes: errors of connections, and of servers that stop or have too much to do.
fn leads_astray(error: &Error) -> bool {
    // Read-only; no such function, table or schema.
    const CODES: [&str; 4] = ["25006", "42883", "42P01", "3F000"];
    let Some(code) = error.code().map(SqlState::code) else {
        return true;
    };
    CODES.contains(&code) || ["08", "53", "57"].iter().any(|class| code.starts_with(class))
}

fn failed(error: &Error) -> StoreError {
    let why = text(error);
    match error.code() {
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
            StoreError::Busy { after: Duration::ZERO }
        }
        Some(_) if !leads_astray(error) => StoreError::Refused { why },
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
