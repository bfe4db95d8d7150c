//! The connection of a [`Redis`](super::Redis): to one server, to the one that sentinels name, or to each of a cluster.

use super::channels::Slot;
use super::script::Call;
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
#[cfg(feature = "redis-sentinel")]
use ::redis::sentinel::SentinelClient;
use ::redis::{Client, Cmd, ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError, ServerErrorKind};
#[cfg(feature = "redis-cluster")]
use ::redis::{
    ProtocolVersion,
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
    from_redis_value,
};
use parking_lot::Mutex;
use std::convert::Infallible;
#[cfg(feature = "redis-sentinel")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate::remote::Key;

/// A connection is made when it is first needed, restored when it breaks, and subscribed again.
pub(super) enum Link {
    Single(Box<Single>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Cluster),
}

/// A connection to one server, and the settings of the next one.
pub(super) struct Single {
    server: Server,
    config: ConnectionManagerConfig,
    hear: Arc<dyn Fn(&PushInfo) + Send + Sync>,
    /// With the number of connections before it; none before sentinels have named a server.
    current: Mutex<(u64, Option<ConnectionManager>)>,
}

/// The server to connect to.
enum Server {
    Known(Client),
    /// The one that sentinels name. A server that has not answered may have a successor: they are asked again.
    #[cfg(feature = "redis-sentinel")]
    Named {
        sentinels: tokio::sync::Mutex<SentinelClient>,
        timeout: Duration,
        in_doubt: AtomicBool,
    },
}

/// A connection to each server of a cluster.
#[cfg(feature = "redis-cluster")]
pub(super) struct Cluster {
    connection: ClusterConnection,
    /// A server has not answered. It may be dead, and another one may have its slots: the next query asks the others.
    in_doubt: AtomicBool,
}

impl Link {
    /// Connects to one server; `hear` gets its messages.
    pub(super) fn to(
        client: Client,
        timeout: Duration,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let single = Single::new(Server::Known(client.clone()), timeout, hear);
        // An unusable setting is found now.
        let first = single.connect(&client)?;
        single.current.lock().1 = Some(first);
        Ok(Self::Single(Box::new(single)))
    }

    /// Connects to the server that sentinels name.
    #[cfg(feature = "redis-sentinel")]
    pub(super) fn by_sentinels(
        sentinels: SentinelClient,
        timeout: Duration,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Self {
        let server = Server::Named {
            sentinels: tokio::sync::Mutex::new(sentinels),
            timeout,
            in_doubt: AtomicBool::new(false),
        };
        Self::Single(Box::new(Single::new(server, timeout, hear)))
    }

    /// Connects to a cluster, of which some servers are named.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn to_cluster(
        servers: ClusterClientBuilder,
        timeout: Duration,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let client = servers
            .use_protocol(ProtocolVersion::RESP3)
            .retries(3)
            .min_retry_wait(10)
            .max_retry_wait(200)
            .connection_timeout(timeout)
            .overall_response_timeout(Some(timeout))
            .push_sender(heard(Arc::new(hear)))
            .build()?;
        // The protocol is taken from here alone.
        let config = ::redis::cluster::ClusterConfig::new().set_response_timeout(timeout);
        Ok(Self::Cluster(Cluster {
            connection: client.get_pending_async_connection_with_config(config),
            in_doubt: AtomicBool::new(false),
        }))
    }

    /// The hash slot of a limiter, in a cluster.
    pub(super) fn slot(&self, key: &Key) -> Option<Slot> {
        match self {
            Self::Single(_) => {
                let _ = key;
                None
            }
            #[cfg(feature = "redis-cluster")]
            // A name without braces counts in full, as the text in braces does otherwise.
            Self::Cluster(_) => Some(Slot::for_key(key.tag())),
        }
    }

    /// The number of the connection, so that it is given up once.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Single(one) => one.current.lock().0,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => 0,
        }
    }

    /// Gives up this connection, which leads to a wrong server by now, unless that was done already, or would not help: a cluster finds
    /// the right one by itself.
    pub(super) fn give_up(&self, number: u64) {
        match self {
            Self::Single(one) => one.give_up(number),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => {}
        }
    }

    pub(super) async fn invoke<T: FromRedisValue>(&self, call: &Call) -> Result<T, RedisError> {
        match self.query(call.by_name()).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.query(&call.in_full()).await
            }
            answer => answer,
        }
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        match self {
            Self::Single(one) => one.query(command).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(many) => many.query(command).await,
        }
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::Single(one) => one.connection().await?.subscribe(channel).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(many) => many.connection.clone().subscribe(channel).await,
        }
    }
}

impl Single {
    fn new(server: Server, timeout: Duration, hear: impl Fn(&PushInfo) + Send + Sync + 'static) -> Self {
        let hear: Arc<dyn Fn(&PushInfo) + Send + Sync> = Arc::new(hear);
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(3)
            .set_min_delay(Duration::from_millis(10))
            .set_max_delay(Duration::from_millis(200))
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            .set_push_sender(heard(Arc::clone(&hear)))
            .set_automatic_resubscription();
        Self {
            server,
            config,
            hear,
            current: Mutex::default(),
        }
    }

    /// Connects when it is first used.
    fn connect(&self, client: &Client) -> Result<ConnectionManager, RedisError> {
        ConnectionManager::new_lazy_with_config(client.clone(), self.config.clone())
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        #[cfg(feature = "redis-sentinel")]
        if let Server::Named { in_doubt, .. } = &self.server {
            // Relaxed: a hint. A stale value asks as before.
            if in_doubt.swap(false, Ordering::Relaxed) {
                let number = self.current.lock().0;
                self.give_up(number);
            }
            let mut waiting = Waiting {
                in_doubt,
                answered: false,
            };
            let answer = match self.connection().await {
                Ok(mut connection) => command.query_async(&mut connection).await,
                Err(error) => Err(error),
            };
            let is_silent = |error: &RedisError| error.is_io_error() || error.is_connection_dropped();
            waiting.answered = !answer.as_ref().is_err_and(is_silent);
            return answer;
        }
        command.query_async(&mut self.connection().await?).await
    }

    async fn connection(&self) -> Result<ConnectionManager, RedisError> {
        let (number, current) = self.current.lock().clone();
        if let Some(current) = current {
            return Ok(current);
        }
        let next = match &self.server {
            Server::Known(client) => self.connect(client)?,
            #[cfg(feature = "redis-sentinel")]
            Server::Named { sentinels, timeout, .. } => {
                // Boxed: the types of all calls would be as deep as the library's.
                let ask: Pin<Box<dyn Future<Output = _> + Send>> =
                    Box::pin(async { sentinels.lock().await.async_get_client().await });
                let client = tokio::time::timeout(*timeout, ask).await.map_err(|_| {
                    let why = "no sentinel has named a server in time";
                    RedisError::from((ErrorKind::Io, why))
                })?;
                self.connect(&client?)?
            }
        };
        let mut current = self.current.lock();
        if current.0 == number {
            return Ok(current.1.get_or_insert(next).clone());
        }
        Ok(next)
    }

    fn give_up(&self, number: u64) {
        let mut current = self.current.lock();
        if current.0 != number {
            return;
        }
        current.0 += 1;
        let old = current.1.take();
        drop(current);
        if old.is_some() {
            drop(old);
            // What it was subscribed to goes with it.
            let (kind, data) = (PushKind::Disconnection, Vec::new());
            (self.hear)(&PushInfo { kind, data });
        }
    }
}

#[cfg(feature = "redis-cluster")]
impl Cluster {
    /// Queries the server that has the key. After a server has not answered, it queries any: one without the key names the
    /// server that has it.
    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        // Relaxed: a hint. A stale value asks as before.
        let anyone = self.in_doubt.swap(false, Ordering::Relaxed);
        let mut connection = self.connection.clone();
        let mut waiting = Waiting {
            in_doubt: &self.in_doubt,
            answered: false,
        };
        let answer = if anyone {
            let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
            connection.route_command(command.clone(), route).await
        } else {
            command.query_async(&mut connection).await
        };
        waiting.answered = !answer.as_ref().is_err_and(RedisError::is_timeout);
        Ok(from_redis_value(answer?)?)
    }
}

/// A query to a server that may have a successor, which its caller may drop.
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
struct Waiting<'a> {
    in_doubt: &'a AtomicBool,
    answered: bool,
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // Relaxed: see `query`.
            self.in_doubt.store(true, Ordering::Relaxed);
        }
    }
}

fn heard(
    hear: Arc<dyn Fn(&PushInfo) + Send + Sync>,
) -> impl Fn(PushInfo) -> Result<(), Infallible> + Send + Sync + 'static {
    move |push| {
        hear(&push);
        Ok(())
    }
}
