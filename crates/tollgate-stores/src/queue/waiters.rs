//! The waiters of this process at a key, and their common watch.
//!
//! A waiter is notified only of its own events: the reports of the watch are judged here, without the store.

use super::node_queue::{Node, NodeQueue, Outlook};
use super::session_diff::Ops;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate::remote::Session;

/// A report of a watch.
#[derive(Debug)]
pub(crate) enum Change {
    /// The full queue.
    All(NodeQueue),
    Entered(Session),
    Left(Session),
    Came(Node),
    Went(Box<str>),
    /// The node at this place has this many units left.
    Shrank(u64, u64),
    #[cfg(feature = "etcd")]
    Resized(u64),
}

pub(super) struct Waiters<T> {
    /// The last view: of the watch, if there is one.
    queue: NodeQueue,
    by_session: HashMap<Session, Waiter>,
    watching: Option<(Arc<T>, JoinHandle<()>)>,
    /// The number of the current watch: late reports of an earlier one do not count.
    watch: u64,
    /// The watch has reported everything.
    sees: bool,
    /// A sync used the watch since the last check.
    asked: bool,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Waiter {
    notify: Arc<Notify>,
    /// The names of the nodes that wait.
    waiting: BTreeSet<Box<str>>,
    keeps: bool,
    /// It knows that others wait.
    knows: bool,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            queue: NodeQueue::default(),
            by_session: HashMap::new(),
            watching: None,
            watch: 0,
            sees: false,
            asked: false,
            changed: Arc::default(),
        }
    }
}

impl<T> Waiters<T> {
    pub(super) fn outlook(&self) -> Outlook {
        self.queue.outlook()
    }

    /// Whether a watch has reported everything. It is kept as long as it is used.
    pub(super) fn keep_watch(&mut self) -> bool {
        self.asked = true;
        self.sees
    }

    /// Notified of each change.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Records that there is no watch any more, or that it misses something.
    pub(super) fn blind(&mut self) -> Arc<Notify> {
        self.sees = false;
        Arc::clone(&self.changed)
    }

    /// The queue, once the watch has reported the changes `done` of `session`; nothing without a watch.
    pub(super) fn queue_after(&self, session: Session, done: &Ops) -> Option<Option<NodeQueue>> {
        if !self.sees {
            return None;
        }
        let created = done
            .create
            .iter()
            .all(|(request, _)| self.queue.nodes_of(session).any(|node| node.request == *request));
        let gone = done.delete.iter().all(|name| self.queue.units(name) == 0);
        let shrunk = done.shrink.iter().all(|(name, units)| self.queue.units(name) <= *units);
        let limited = done.limit.is_none_or(|limit| self.queue.limit() == limit);
        Some((created && gone && shrunk && limited).then(|| self.queue.clone()))
    }

    pub(super) fn waiter(&mut self, session: Session) -> Arc<Notify> {
        Arc::clone(&self.by_session.entry(session).or_default().notify)
    }

    /// A session goes. True when it was the last.
    pub(super) fn leave(&mut self, session: Session) -> bool {
        self.by_session.remove(&session);
        self.is_empty()
    }

    /// True without sessions.
    pub(super) fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// Merges a look: held nodes of the last view are added to it, and it becomes the view without a watch.
    pub(super) fn see(&mut self, queue: &mut NodeQueue) {
        queue.after(&self.queue);
        if !self.sees {
            self.queue = queue.clone();
        }
    }

    /// Records what `session` waits for. True when that is anything.
    pub(super) fn update<'a>(
        &mut self,
        session: Session,
        waiting: impl Iterator<Item = &'a str>,
        keeps: bool,
        knows: bool,
    ) -> bool {
        let waiter = self.by_session.entry(session).or_default();
        waiter.waiting = waiting.map(Into::into).collect();
        (waiter.keeps, waiter.knows) = (keeps, knows);
        waiter.wants()
    }

    /// True without waiters. Then this watch ends.
    pub(super) fn is_idle(&mut self) -> bool {
        let idle = !std::mem::take(&mut self.asked) && !self.by_session.values().any(Waiter::wants);
        if idle {
            self.watching = None;
            self.watch = 0;
            self.sees = false;
        }
        idle
    }

    /// Whether there is a watch, of a term that is not over.
    pub(super) fn is_watched(&self, is_over: impl FnOnce(&T) -> bool) -> bool {
        let watching = self.watching.as_ref();
        watching.is_some_and(|(term, task)| !task.is_finished() && !is_over(term))
    }

    /// Replaces the watch.
    pub(super) fn watch(&mut self, number: u64, term: Arc<T>, task: JoinHandle<()>) {
        self.sees = false;
        self.watch = number;
        if let Some((_, earlier)) = self.watching.replace((term, task)) {
            earlier.abort();
        }
    }

    /// Whether this watch is the current one.
    pub(super) fn is_watched_by(&self, number: u64) -> bool {
        self.watch == number
    }

    /// Applies a report. Returns the notifiers, to be called without a lock.
    #[must_use]
    pub(super) fn apply(&mut self, change: Change) -> Vec<Arc<Notify>> {
        match change {
            Change::All(mut queue) => {
                queue.after(&self.queue);
                self.queue = queue;
                self.sees = true;
            }
            Change::Entered(session) => self.queue.add_session(session),
            Change::Left(session) => self.queue.remove_session(session),
            Change::Came(node) => self.queue.add(node),
            Change::Went(name) => self.queue.remove(&name),
            Change::Shrank(place, units) => self.queue.shrink(place, units),
            #[cfg(feature = "etcd")]
            Change::Resized(limit) => self.queue.resize(limit),
        }
        self.due()
    }

    /// The notifiers of waiters with events.
    #[must_use]
    pub(super) fn due(&mut self) -> Vec<Arc<Notify>> {
        let mut to_notify = Vec::new();
        if !self.sees {
            return to_notify;
        }
        for (session, waiter) in &mut self.by_session {
            let others_wait = waiter.keeps && self.queue.others_wait(*session);
            let mut waiting = waiter.waiting.iter();
            // The limit was lowered below the need of a waiter: its client withdraws the request.
            let is_over = |name: &str| self.queue.units(name) > self.queue.limit();
            let decided = waiting.any(|name| self.queue.is_held(name) || is_over(name));
            if decided || others_wait && !waiter.knows {
                to_notify.push(Arc::clone(&waiter.notify));
            }
            waiter.knows = others_wait;
        }
        to_notify
    }

    pub(super) fn all(&self) -> Vec<Arc<Notify>> {
        self.by_session
            .values()
            .map(|waiter| Arc::clone(&waiter.notify))
            .collect()
    }
}

impl Waiter {
    fn wants(&self) -> bool {
        self.keeps || !self.waiting.is_empty()
    }
}

impl<T> Drop for Waiters<T> {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.watching {
            task.abort();
        }
    }
}
