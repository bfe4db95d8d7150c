//! The connection of a [`Redis`](super::Redis): to one server, or to each of a cluster.

use super::channels::Slot;
use super::script::Call;
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, Cmd, ErrorKind, FromRedisValue, PushInfo, RedisError, ServerErrorKind};
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
#[cfg(feature = "redis-cluster")]
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
    client: Client,
    config: ConnectionManagerConfig,
    /// With the number of connections before it.
    current: Mutex<(u64, ConnectionManager)>,
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
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(3)
            .set_min_delay(Duration::from_millis(10))
            .set_max_delay(Duration::from_millis(200))
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            .set_push_sender(heard(hear))
            .set_automatic_resubscription();
        let first = ConnectionManager::new_lazy_with_config(client.clone(), config.clone())?;
        Ok(Self::Single(Box::new(Single {
            client,
            config,
            current: Mutex::new((0, first)),
        })))
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
            .push_sender(heard(hear))
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
            Self::Cluster(_) => Some(Slot::for_key(key.as_str())),
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

    /// Replaces this connection, which leads to a wrong server by now. False where that was done already, or would not help: a
    /// cluster finds the right one by itself.
    pub(super) fn give_up(&self, number: u64) -> bool {
        match self {
            Self::Single(one) => one.give_up(number),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => false,
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
            Self::Single(one) => command.query_async(&mut one.connection()).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(many) => many.query(command).await,
        }
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::Single(one) => one.connection().subscribe(channel).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(many) => many.connection.clone().subscribe(channel).await,
        }
    }
}

impl Single {
    fn connection(&self) -> ConnectionManager {
        self.current.lock().1.clone()
    }

    fn give_up(&self, number: u64) -> bool {
        if self.current.lock().0 != number {
            return false;
        }
        let Ok(next) = ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone()) else {
            return false;
        };
        let mut current = self.current.lock();
        if current.0 != number {
            return false;
        }
        let old = std::mem::replace(&mut *current, (number + 1, next));
        drop(current);
        drop(old);
        true
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

/// A query to a server of a cluster, which its caller may drop.
#[cfg(feature = "redis-cluster")]
struct Waiting<'a> {
    in_doubt: &'a AtomicBool,
    answered: bool,
}

#[cfg(feature = "redis-cluster")]
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // Relaxed: see `query`.
            self.in_doubt.store(true, Ordering::Relaxed);
        }
    }
}

fn heard(
    hear: impl Fn(&PushInfo) + Send + Sync + 'static,
) -> impl Fn(PushInfo) -> Result<(), Infallible> + Send + Sync + 'static {
    move |push| {
        hear(&push);
        Ok(())
    }
}
