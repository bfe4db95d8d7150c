//! Where this process is told of news, and whether it may do there all that it has to.

use crate::remote::key::Key;
use crate::remote::random;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Part of a cluster that lies on one server, whichever that is.
#[cfg(feature = "redis-cluster")]
pub(super) type Slot = ::redis::cluster_routing::Slot;
#[cfg(not(feature = "redis-cluster"))]
pub(super) type Slot = std::convert::Infallible;

/// One post for all limiters of one server, and in a cluster one for those of each hash slot. So the server at which a limiter
/// lies is the one that is tried, and that tells: whoever asks for the limiter learns when that is another one.
pub(super) struct Channels {
    prefix: Box<str>,
    /// Nobody else has it.
    random: u64,
    taken: Mutex<HashMap<Option<Slot>, Arc<Channel>>>,
}

/// A channel of this process, and a key, on one server.
pub(super) struct Channel {
    pub(super) channel: Arc<str>,
    pub(super) key: Box<str>,
    /// Empty until both have been tried out, since the last connection was lost.
    tried: Mutex<Arc<OnceCell<()>>>,
}

impl Channels {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
            random: random::number(),
            taken: Mutex::default(),
        }
    }

    /// That of a limiter, which lies in this slot of a cluster.
    pub(super) fn of(&self, key: &Key, slot: Option<Slot>) -> Arc<Channel> {
        let Self { prefix, random, taken } = self;
        let channel = || {
            let (tag, of_slot) = match slot {
                None => ("rights", String::new()),
                Some(_) => (key.as_str(), format!(":{{{key}}}")),
            };
            Arc::new(Channel {
                channel: format!("{prefix}news:{random:016x}{of_slot}").into(),
                key: format!("{prefix}{{{tag}}}:rights:{random:016x}").into(),
                tried: Mutex::default(),
            })
        };
        Arc::clone(taken.lock().entry(slot).or_insert_with(channel))
    }

    /// A connection was lost: the next one may be to a server at which all is to be tried again.
    pub(super) fn begin_anew(&self) {
        let channels: Vec<_> = self.taken.lock().values().cloned().collect();
        for channel in channels {
            *channel.tried.lock() = Arc::default();
        }
    }
}

impl Channel {
    pub(super) fn tried(&self) -> Arc<OnceCell<()>> {
        Arc::clone(&self.tried.lock())
    }
}
