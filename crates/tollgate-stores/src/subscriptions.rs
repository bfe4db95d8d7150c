//! The sessions of this process that get messages of a connection, at stores that carry out each sync by a script.

use crate::answer::Answer;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tollgate::remote::{Notification, SyncReply};

/// The subscriptions, by the names in messages.
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<HashMap<String, Arc<Subscription>>>);

/// The notifications of one session.
pub(crate) struct Subscription {
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "one channel at other stores"))]
    channel: Arc<str>,
    notified: Notify,
    notification: Mutex<Notification>,
}

impl Subscriptions {
    /// The subscription of that name, from now on, at a channel.
    pub(crate) fn open(&self, name: String, channel: &Arc<str>) -> Arc<Subscription> {
        let subscription = || {
            Arc::new(Subscription {
                channel: Arc::clone(channel),
                notified: Notify::new(),
                notification: Mutex::default(),
            })
        };
        Arc::clone(self.0.lock().entry(name).or_insert_with(subscription))
    }

    pub(crate) fn close(&self, name: &str) {
        let subscription = self.0.lock().remove(name);
        drop(subscription);
    }

    /// Passes a message on: the name of a session, and its reply, if it has a second line.
    pub(crate) fn hear(&self, said: &str) {
        let (name, message) = said.rsplit_once('\n').unwrap_or((said, ""));
        let subscription = self.0.lock().get(name).cloned();
        if let Some(subscription) = subscription {
            subscription.notify(granted(message).map_or(Notification::Sync, Notification::Reply));
        }
    }

    /// Messages were lost: all sessions sync.
    pub(crate) fn missed_all(&self) {
        self.missed(|_| true);
    }

    /// The sessions of this channel sync.
    #[cfg(feature = "redis")]
    pub(crate) fn missed_at(&self, channel: &[u8]) {
        self.missed(|subscription| subscription.channel.as_bytes() == channel);
    }

    fn missed(&self, who: impl Fn(&Subscription) -> bool) {
        let subscriptions: Vec<_> = self
            .0
            .lock()
            .values()
            .filter(|subscription| who(subscription))
            .cloned()
            .collect();
        subscriptions
            .iter()
            .for_each(|subscription| subscription.notify(Notification::Sync));
    }
}

impl Subscription {
    fn notify(&self, notification: Notification) {
        {
            // The last message replaces those before it, except one that needs a sync.
            let mut known = self.notification.lock();
            if !matches!(*known, Notification::Sync) {
                *known = notification;
            }
        }
        self.notified.notify_one();
    }

    /// Ends when there was a message since it last ended.
    pub(crate) async fn notified(&self) {
        self.notified.notified().await;
    }

    /// Takes the last notification.
    pub(crate) fn take(&self) -> Notification {
        std::mem::take(&mut *self.notification.lock())
    }
}

/// The reply with the grants of a message; none without grants.
fn granted(message: &str) -> Option<SyncReply> {
    let mut words: Vec<String> = message.split(' ').map(str::to_owned).collect();
    words.get_mut(2)?.clear();
    let reply = Answer(words).of_permits().ok()?;
    (!reply.grants.is_empty()).then_some(reply)
}
