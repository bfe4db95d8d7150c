//! The channels of this process for notifications, and the check of its rights.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OnceCell;
use tollgate::remote::Key;
use tollgate::remote::model::random_number;

/// A hash slot of a cluster, which lies on one server.
#[cfg(feature = "redis-cluster")]
pub(super) type Slot = ::redis::cluster_routing::Slot;
#[cfg(not(feature = "redis-cluster"))]
pub(super) type Slot = std::convert::Infallible;

/// One channel for all limiters of one server, or, in a cluster, for those of each hash slot. So the rights are checked at the
/// server of the limiter, which also sends the messages: any sync at the limiter finds out when its server changes.
pub(super) struct Channels {
    prefix: Box<str>,
    /// Unique to this process.
    random: u64,
    taken: Mutex<HashMap<Option<Slot>, Arc<Channel>>>,
}

/// A channel of this process, and a key, on one server.
pub(super) struct Channel {
    pub(super) channel: Arc<str>,
    pub(super) key: Box<str>,
    /// The key of the latest token of all limiters there, for all processes.
    pub(super) clock: Box<str>,
    /// Empty until both were checked, since the last connection was lost.
    tried: Mutex<Arc<OnceCell<()>>>,
}

impl Channels {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
            random: random_number(),
            taken: Mutex::default(),
        }
    }

    /// The channel of a limiter, in this slot of a cluster.
    pub(super) fn of(&self, key: &Key, slot: Option<Slot>) -> Arc<Channel> {
        let Self { prefix, random, taken } = self;
        let channel = || {
            let (tag, of_slot) = match slot {
                None => ("rights", String::new()),
                Some(_) => (key.tag(), format!(":{{{}}}", key.tag())),
            };
            Arc::new(Channel {
                channel: format!("{prefix}news:{random:016x}{of_slot}").into(),
                key: format!("{prefix}{{{tag}}}:rights:{random:016x}").into(),
                clock: clock(prefix, slot).into(),
                tried: Mutex::default(),
            })
        };
        Arc::clone(taken.lock().entry(slot).or_insert_with(channel))
    }

    /// Checks all rights again after a lost connection: the next one may be to another server.
    pub(super) fn begin_anew(&self) {
        let channels: Vec<_> = self.taken.lock().values().cloned().collect();
        for channel in channels {
            *channel.tried.lock() = Arc::default();
        }
    }
}

/// The key of the latest token. In a cluster it lies in the slot: of the numbers, the first that does is its tag.
fn clock(prefix: &str, slot: Option<Slot>) -> String {
    match slot {
        None => format!("{prefix}clock"),
        #[cfg(not(feature = "redis-cluster"))]
        Some(slot) => match slot {},
        #[cfg(feature = "redis-cluster")]
        Some(slot) => {
            let mut tags = (0_u32..).map(|number| number.to_string());
            let tag = tags.find(|tag| Slot::for_key(tag) == slot);
            format!("{prefix}{{{}}}:clock", tag.unwrap_or_default())
        }
    }
}

impl Channel {
    pub(super) fn tried(&self) -> Arc<OnceCell<()>> {
        Arc::clone(&self.tried.lock())
    }
}
