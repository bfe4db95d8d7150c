//! The connection of a [`Redis`](super::Redis): to one server, or to each of a cluster.

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, FromRedisValue, PushInfo, RedisError, ScriptInvocation};
#[cfg(feature = "redis-cluster")]
use ::redis::{ProtocolVersion, cluster::ClusterClientBuilder, cluster_async::ClusterConnection};
use std::convert::Infallible;
use std::time::Duration;

/// A handle: clones are the same connection. It is made when it is first needed, made anew when it breaks, and subscribed to
/// what it was before.
#[derive(Clone)]
pub(super) enum Link {
    One(ConnectionManager),
    #[cfg(feature = "redis-cluster")]
    Cluster(ClusterConnection),
}

impl Link {
    /// To one server; `hear` is told of what comes beside answers.
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
        ConnectionManager::new_lazy_with_config(client, config).map(Self::One)
    }

    /// To the servers of a cluster, of which some are named.
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
            .response_timeout(timeout)
            .overall_response_timeout(Some(timeout))
            .push_sender(heard(hear))
            .build()?;
        let config = ::redis::cluster::ClusterConfig::new();
        Ok(Self::Cluster(client.get_pending_async_connection_with_config(config)))
    }

    pub(super) async fn invoke<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T, RedisError> {
        match self {
            Self::One(connection) => script.invoke_async(&mut connection.clone()).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(connection) => script.invoke_async(&mut connection.clone()).await,
        }
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::One(connection) => connection.clone().subscribe(channel).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(connection) => connection.clone().subscribe(channel).await,
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
