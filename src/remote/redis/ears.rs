//! Who is told what, by the messages that a connection brings.

use super::answer::Answer;
use crate::remote::backend::{News, Reply};
use ::redis::{PushInfo, PushKind, Value};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// By what messages call them, the sessions of this process.
#[derive(Default)]
pub(super) struct Ears(Mutex<HashMap<String, Arc<Ear>>>);

/// What one session is to hear.
pub(super) struct Ear {
    channel: Arc<str>,
    rung: Notify,
    news: Mutex<News>,
}

impl Ears {
    /// The ear of that name, from now on, at a channel.
    pub(super) fn open(&self, name: String, channel: &Arc<str>) -> Arc<Ear> {
        let ear = || {
            Arc::new(Ear {
                channel: Arc::clone(channel),
                rung: Notify::new(),
                news: Mutex::default(),
            })
        };
        Arc::clone(self.0.lock().entry(name).or_insert_with(ear))
    }

    pub(super) fn close(&self, name: &str) {
        let ear = self.0.lock().remove(name);
        drop(ear);
    }

    pub(super) fn hear(&self, push: &PushInfo) {
        match push.kind {
            PushKind::Message => {
                let Some(Value::BulkString(said)) = push.data.get(1) else {
                    return;
                };
                let said = String::from_utf8_lossy(said);
                let (name, told) = said.rsplit_once('\n').unwrap_or((&said, ""));
                let ear = self.0.lock().get(name).cloned();
                if let Some(ear) = ear {
                    ear.ring(granted(told).map_or(News::Look, News::Told));
                }
            }
            PushKind::Subscribe => {
                if let Some(Value::BulkString(channel)) = push.data.first() {
                    self.missed(|ear| ear.channel.as_bytes() == channel);
                }
            }
            PushKind::Disconnection => self.missed_all(),
            _ => {}
        }
    }

    /// What was said meanwhile is lost: all look for themselves.
    pub(super) fn missed_all(&self) {
        self.missed(|_| true);
    }

    fn missed(&self, who: impl Fn(&Ear) -> bool) {
        let ears: Vec<_> = self.0.lock().values().filter(|ear| who(ear)).cloned().collect();
        ears.iter().for_each(|ear| ear.ring(News::Look));
    }
}

impl Ear {
    fn ring(&self, news: News) {
        {
            // The last message makes up for those before, but for what only a step finds.
            let mut known = self.news.lock();
            if !matches!(*known, News::Look) {
                *known = news;
            }
        }
        self.rung.notify_one();
    }

    /// Ends when something was heard since it last did.
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }

    /// What was heard since it was last taken.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut *self.news.lock())
    }
}

/// What a message tells of grants; none where there are none.
fn granted(told: &str) -> Option<Reply> {
    let mut words: Vec<String> = told.split(' ').map(str::to_owned).collect();
    words.get_mut(2)?.clear();
    let reply = Answer(words).of_permits().ok()?;
    (!reply.grants.is_empty()).then_some(reply)
}
