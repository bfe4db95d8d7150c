//! The queue of a pool as plain data: entries linked by index in a slab. An entry is pushed, taken and cancelled in constant time.
//!
//! An entry stands in one list: that of its priority, or that of its group while the group is full. An entry that a task awaits
//! stands in the list of awaited entries besides.

/// In what order tasks leave the queue. Within one priority: first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// How many tasks may be preferred to the oldest before it is taken.
pub const AGEING: u32 = 32;

const NONE: u32 = u32::MAX;

/// An entry's place. It stays valid after the entry is gone, and then finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// A group's number within its pool.
pub(crate) type GroupId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Ready,
    /// Its group is full.
    Blocked,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

const UNLINKED: Links = Links { prev: NONE, next: NONE };

struct Node<E> {
    entry: Option<E>,
    generation: u32,
    number: u64,
    priority: Priority,
    group: Option<GroupId>,
    place: Place,
    links: Links,
    /// How many tasks await it; linked by `awaited_links` while there is one.
    awaited: u32,
    awaited_links: Links,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

/// Which links of a node a list goes by.
type Via<E> = fn(&mut Node<E>) -> &mut Links;

impl List {
    fn push_back<E>(&mut self, nodes: &mut [Node<E>], via: Via<E>, index: u32) {
        *via(&mut nodes[index as usize]) = Links {
            prev: self.tail,
            next: NONE,
        };
        match self.tail {
            NONE => self.head = index,
            tail => via(&mut nodes[tail as usize]).next = index,
        }
        self.tail = index;
    }

    fn insert_before<E>(&mut self, nodes: &mut [Node<E>], via: Via<E>, index: u32, next: u32) {
        if next == NONE {
            return self.push_back(nodes, via, index);
        }
        let prev = std::mem::replace(&mut via(&mut nodes[next as usize]).prev, index);
        *via(&mut nodes[index as usize]) = Links { prev, next };
        match prev {
            NONE => self.head = index,
            prev => via(&mut nodes[prev as usize]).next = index,
        }
    }

    /// Before the first entry that is younger.
    fn insert_by_number<E>(&mut self, nodes: &mut [Node<E>], index: u32) {
        let mut next = self.head;
        while next != NONE && nodes[next as usize].number < nodes[index as usize].number {
            next = nodes[next as usize].links.next;
        }
        self.insert_before(nodes, |node| &mut node.links, index, next);
    }

    fn unlink<E>(&mut self, nodes: &mut [Node<E>], via: Via<E>, index: u32) {
        let Links { prev, next } = std::mem::replace(via(&mut nodes[index as usize]), UNLINKED);
        match prev {
            NONE => self.head = next,
            prev => via(&mut nodes[prev as usize]).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => via(&mut nodes[next as usize]).prev = prev,
        }
    }
}

pub(crate) struct Queue<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    ready: [List; 3],
    awaited: List,
    blocked: Vec<[List; 3]>,
    len: usize,
    next_number: u64,
    preferred: u32,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            ready: [List::default(); 3],
            awaited: List::default(),
            blocked: Vec::new(),
            len: 0,
            next_number: 0,
            preferred: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a list for one more group, whose number is that of the call, from 0.
    pub(crate) fn add_group(&mut self) {
        self.blocked.push([List::default(); 3]);
    }

    pub(crate) fn push(&mut self, entry: E, priority: Priority, group: Option<GroupId>) -> Key {
        let number = self.next_number;
        self.next_number += 1;
        self.len += 1;
        let index = if self.free == NONE {
            self.nodes.push(Node {
                entry: None,
                generation: 0,
                number,
                priority,
                group,
                place: Place::Free,
                links: UNLINKED,
                awaited: 0,
                awaited_links: UNLINKED,
            });
            self.nodes.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].links.next;
            index
        };
        let node = &mut self.nodes[index as usize];
        (node.entry, node.number, node.priority, node.group) = (Some(entry), number, priority, group);
        (node.place, node.awaited) = (Place::Ready, 0);
        let generation = node.generation;
        self.ready[priority as usize].push_back(&mut self.nodes, |node| &mut node.links, index);
        Key { index, generation }
    }

    fn node(&self, key: Key) -> Option<&Node<E>> {
        let node = self.nodes.get(key.index as usize)?;
        (node.generation == key.generation && node.entry.is_some()).then_some(node)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&E> {
        self.node(key)?.entry.as_ref()
    }

    pub(crate) fn group(&self, key: Key) -> Option<GroupId> {
        self.node(key)?.group
    }

    /// Of the ready entries, the one with the smallest number.
    fn oldest(&self) -> Option<u32> {
        let heads = self.ready.iter().map(|list| list.head).filter(|&head| head != NONE);
        heads.min_by_key(|&head| self.nodes[head as usize].number)
    }

    /// The entry that is next by priority, ageing and arrival, among those whose group is not full.
    pub(crate) fn first(&self) -> Option<Key> {
        if self.preferred >= AGEING {
            return self.oldest().map(|index| self.key(index));
        }
        let highest = self.ready.iter().rfind(|list| list.head != NONE)?;
        Some(self.key(highest.head))
    }

    fn key(&self, index: u32) -> Key {
        let generation = self.nodes[index as usize].generation;
        Key { index, generation }
    }

    /// The awaited entries, in the order in which they were first awaited.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = Key> + '_ {
        let mut index = self.awaited.head;
        std::iter::from_fn(move || {
            let key = (index != NONE).then(|| self.key(index))?;
            index = self.nodes[index as usize].awaited_links.next;
            Some(key)
        })
    }

    /// A task awaits the entry from now on. False when the entry has left the queue.
    pub(crate) fn await_it(&mut self, key: Key) -> bool {
        if self.node(key).is_none() {
            return false;
        }
        let node = &mut self.nodes[key.index as usize];
        node.awaited += 1;
        if node.awaited == 1 {
            self.awaited
                .push_back(&mut self.nodes, |node| &mut node.awaited_links, key.index);
        }
        true
    }

    /// A task awaits the entry no longer.
    pub(crate) fn await_no_more(&mut self, key: Key) {
        if self.node(key).is_none() {
            return;
        }
        let node = &mut self.nodes[key.index as usize];
        node.awaited -= 1;
        if node.awaited == 0 {
            self.awaited
                .unlink(&mut self.nodes, |node| &mut node.awaited_links, key.index);
        }
    }

    /// Takes an entry out to start it: the order by priority counts it.
    pub(crate) fn take(&mut self, key: Key) -> Option<E> {
        let number = self.node(key)?.number;
        let is_preferred = self
            .oldest()
            .is_some_and(|oldest| self.nodes[oldest as usize].number < number);
        self.preferred = if is_preferred { self.preferred + 1 } else { 0 };
        self.remove(key)
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: Key) -> Option<E> {
        self.node(key)?;
        self.unlink(key.index);
        let node = &mut self.nodes[key.index as usize];
        let awaited = std::mem::take(&mut node.awaited);
        let entry = node.entry.take();
        node.generation = node.generation.wrapping_add(1);
        node.place = Place::Free;
        if awaited > 0 {
            self.awaited
                .unlink(&mut self.nodes, |node| &mut node.awaited_links, key.index);
        }
        self.nodes[key.index as usize].links.next = std::mem::replace(&mut self.free, key.index);
        self.len -= 1;
        entry
    }

    fn unlink(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        let (priority, group) = (node.priority as usize, node.group);
        let list = match (node.place, group) {
            (Place::Blocked, Some(group)) => &mut self.blocked[group as usize][priority],
            _ => &mut self.ready[priority],
        };
        list.unlink(&mut self.nodes, |node| &mut node.links, index);
    }

    /// The group of the entry is full: the entry waits for the group.
    pub(crate) fn block(&mut self, key: Key) {
        let Some(&Node {
            group: Some(group),
            priority,
            place: Place::Ready,
            ..
        }) = self.node(key)
        else {
            return;
        };
        self.unlink(key.index);
        self.nodes[key.index as usize].place = Place::Blocked;
        if self.preferred < AGEING {
            let list = &mut self.blocked[group as usize][priority as usize];
            return list.push_back(&mut self.nodes, |node| &mut node.links, key.index);
        }
        // It came first by its age: that holds within its group, whose members of higher priorities pass it no more.
        self.nodes[key.index as usize].priority = Priority::High;
        let list = &mut self.blocked[group as usize][Priority::High as usize];
        list.insert_by_number(&mut self.nodes, key.index);
    }

    /// The group has room for a task: the first entry of each priority is ready again, where its number puts it. Were it the highest
    /// alone, a lower one would not age.
    pub(crate) fn unblock(&mut self, group: GroupId) -> bool {
        let unblocked = [0, 1, 2].map(|list| self.unblock_first(group, list));
        unblocked.contains(&true)
    }

    fn unblock_first(&mut self, group: GroupId, list: usize) -> bool {
        let index = self.blocked[group as usize][list].head;
        if index == NONE {
            return false;
        }
        self.unlink(index);
        self.nodes[index as usize].place = Place::Ready;
        self.ready[list].insert_by_number(&mut self.nodes, index);
        true
    }

    /// Takes all entries out, in the order of their numbers within each priority, the highest first.
    pub(crate) fn drain(&mut self) -> Vec<E> {
        let mut keys: Vec<_> = (0..self.nodes.len() as u32)
            .filter(|&index| self.nodes[index as usize].entry.is_some())
            .map(|index| self.key(index))
            .collect();
        keys.sort_by_key(|key| {
            let node = &self.nodes[key.index as usize];
            (std::cmp::Reverse(node.priority), node.number)
        });
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &mut Queue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.first().and_then(|key| queue.take(key))).collect()
    }

    #[test]
    fn entries_leave_by_priority_and_arrival() {
        let mut queue = Queue::new();
        for (n, priority) in [Priority::Normal, Priority::High, Priority::Low, Priority::High]
            .into_iter()
            .enumerate()
        {
            queue.push(n as u32, priority, None);
        }
        assert_eq!(taken(&mut queue), [1, 3, 0, 2]);
    }

    #[test]
    fn the_lowest_is_taken_after_the_stated_number_of_preferred_ones() {
        let mut queue = Queue::new();
        queue.push(1_000, Priority::Low, None);
        (0..100).for_each(|n| _ = queue.push(n, Priority::High, None));
        let order = taken(&mut queue);
        assert_eq!(order.iter().position(|&n| n == 1_000), Some(AGEING as usize));
    }

    #[test]
    fn a_cancelled_entry_is_gone_and_its_key_finds_no_other() {
        let mut queue = Queue::new();
        let first = queue.push(1, Priority::Normal, None);
        assert_eq!(queue.remove(first), Some(1));
        let second = queue.push(2, Priority::Normal, None);
        assert!(queue.remove(first).is_none() && queue.get(second) == Some(&2));
        assert_eq!((taken(&mut queue), queue.len()), (vec![2], 0));
    }

    #[test]
    fn an_entry_whose_group_is_full_lets_others_pass_and_returns_to_its_place() {
        let mut queue = Queue::new();
        queue.add_group();
        let first = queue.push(1, Priority::Normal, Some(0));
        let second = queue.push(2, Priority::Normal, Some(0));
        queue.push(3, Priority::Normal, None);
        queue.push(4, Priority::Normal, None);
        queue.block(first);
        queue.block(second);
        assert_eq!(queue.first().and_then(|key| queue.take(key)), Some(3));
        assert!(queue.unblock(0) && queue.unblock(0) && !queue.unblock(0));
        assert_eq!(taken(&mut queue), [1, 2, 4]);
    }

    /// Members of the group run long, others short. The entry ages while its group is full, each time.
    #[test]
    fn an_entry_that_ages_while_its_group_is_full_is_the_next_of_the_group() {
        let mut queue = Queue::new();
        queue.add_group();
        let (low, member, other) = (1, 2, 3);
        queue.push(low, Priority::Low, Some(0));
        for round in 0..10 {
            queue.push(member, Priority::High, Some(0));
            queue.unblock(0);
            // A member starts, and the group is full.
            let first = queue.first().unwrap();
            if queue.take(first) == Some(low) {
                assert!(round < 3);
                return;
            }
            for _ in 0..2 * AGEING {
                queue.push(other, Priority::High, None);
                loop {
                    let first = queue.first().unwrap();
                    match queue.group(first) {
                        Some(_) => queue.block(first),
                        None => {
                            queue.take(first);
                            break;
                        }
                    }
                }
            }
        }
        panic!("it starves");
    }

    #[test]
    fn awaited_entries_are_listed_until_they_leave() {
        let mut queue = Queue::new();
        queue.push(1, Priority::Normal, None);
        let second = queue.push(2, Priority::Normal, None);
        assert!(queue.await_it(second) && queue.await_it(second));
        queue.await_no_more(second);
        assert_eq!(queue.awaited().collect::<Vec<_>>(), [second]);
        queue.remove(second);
        assert!(queue.awaited().next().is_none() && !queue.await_it(second));
    }
}
