//! The names of nodes, which have the full state: a list of names is all that has to be read.
//!
//! | name | what it is |
//! |---|---|
//! | `s-<session>` | the session is there |
//! | `w-<session>-<request>-<units>-<sequence>` | a request for this many units |
//! | `r-<session>-<left>-<sequence>` | a mark: this many units are left of the request with this sequence number |

use crate::queue::{Node, NodeQueue, parse_session};
use std::collections::HashMap;
use tollgate::remote::MAX_UNITS;
use tollgate::remote::Session;

/// A parsed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Present(Session),
    Request {
        session: Session,
        request: u64,
        units: u64,
        sequence: i64,
    },
    Left {
        session: Session,
        units: u64,
        sequence: i64,
    },
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once('-')?;
        let (first, rest) = rest.split_once('-').unwrap_or((rest, ""));
        let session = parse_session(first)?;
        match kind {
            "s" if rest.is_empty() => Some(Self::Present(session)),
            "w" => {
                let (request, rest) = rest.split_once('-')?;
                let (units, sequence) = rest.split_once('-')?;
                Some(Self::Request {
                    session,
                    request: request.parse().ok()?,
                    units: self::units(units)?,
                    sequence: sequence.parse().ok()?,
                })
            }
            "r" => {
                let (units, sequence) = rest.split_once('-')?;
                Some(Self::Left {
                    session,
                    units: self::units(units)?,
                    sequence: sequence.parse().ok()?,
                })
            }
            _ => None,
        }
    }

    fn session(self) -> Session {
        match self {
            Self::Present(session) | Self::Request { session, .. } | Self::Left { session, .. } => session,
        }
    }

    /// True of all names of `session`.
    pub(super) fn is_of(self, session: Session) -> bool {
        self.session() == session
    }
}

fn units(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&units| units <= MAX_UNITS)
}

pub(super) fn present(session: Session) -> String {
    format!("s-{session}")
}

/// The name of a request; the server adds the sequence number.
pub(super) fn request(session: Session, request: u64, units: u64) -> String {
    format!("w-{session}-{request}-{units}-")
}

/// The mark that `units` are left of the request `name`.
pub(super) fn left(name: &str, units: u64) -> Option<String> {
    match Name::parse(name)? {
        Name::Request { session, .. } => {
            // As it is written: with its leading zeros.
            let sequence = name.splitn(5, '-').nth(4)?;
            Some(format!("r-{session}-{units}-{sequence}"))
        }
        _ => None,
    }
}

/// The parsed names under a key. An error is a foreign name.
pub(super) struct Names<'a>(Vec<(&'a str, Name)>);

impl<'a> Names<'a> {
    pub(super) fn read(names: &'a [String]) -> Result<Self, &'a str> {
        let names = names
            .iter()
            .map(|name| Ok((&**name, Name::parse(name).ok_or(&**name)?)));
        names.collect::<Result<_, _>>().map(Self)
    }

    /// True when the order of the sequence numbers may not be that of creation: they have 32 bits, and begin anew. `next` is
    /// the server's next number.
    pub(super) fn have_wrapped(&self, next: i32) -> bool {
        next < 0
            || self
                .requests()
                .any(|(_, sequence)| sequence < 0 || sequence >= i64::from(next))
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = (&'a str, i64)> {
        self.0.iter().filter_map(|(name, read)| match read {
            Name::Request { sequence, .. } => Some((*name, *sequence)),
            _ => None,
        })
    }

    /// The names of requests of `session`.
    pub(super) fn requests_of(&self, session: Session) -> impl Iterator<Item = &'a str> {
        let requests = self.0.iter().filter(move |(_, read)| read.is_of(session));
        requests
            .filter(|(_, read)| matches!(read, Name::Request { .. }))
            .map(|(name, _)| *name)
    }

    /// Overtaken marks of `session`: fewer units are left, or none.
    pub(super) fn stale_marks(&self, session: Session) -> impl Iterator<Item = &'a str> {
        let mut least: HashMap<i64, u64> = self.requests().map(|(_, sequence)| (sequence, u64::MAX)).collect();
        for (_, read) in &self.0 {
            if let Name::Left { units, sequence, .. } = *read
                && let Some(least) = least.get_mut(&sequence)
            {
                *least = units.min(*least);
            }
        }
        let ours = self.0.iter().filter(move |(_, read)| read.is_of(session));
        ours.filter(
            move |(_, read)| matches!(read, Name::Left { units, sequence, .. } if least.get(sequence) != Some(units)),
        )
        .map(|(name, _)| *name)
    }

    /// The queue of these names. `created` has the transactions that created nodes, as far as they are known: tokens, and
    /// places where `wrapped`.
    pub(super) fn queue(&self, limit: u64, created: &HashMap<Box<str>, u64>, wrapped: bool) -> NodeQueue {
        let mut left: HashMap<i64, u64> = HashMap::new();
        let (mut sessions, mut nodes) = (Vec::new(), Vec::new());
        for (_, read) in &self.0 {
            match *read {
                Name::Present(session) => sessions.push(session),
                Name::Left { units, sequence, .. } => {
                    let least = left.entry(sequence).or_insert(units);
                    *least = units.min(*least);
                }
                Name::Request { .. } => {}
            }
        }
        for (name, read) in &self.0 {
            let Name::Request {
                session,
                request,
                units,
                sequence,
            } = *read
            else {
                continue;
            };
            let token = created.get(*name).copied().unwrap_or(0);
            nodes.push(Node {
                name: (*name).into(),
                place: if wrapped { token } else { sequence.unsigned_abs() },
                session,
                request,
                units: units.min(left.get(&sequence).copied().unwrap_or(units)),
                token,
            });
        }
        NodeQueue::new(limit, sessions, nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Session = Session {
        client: 0xa1b2,
        number: 7,
    };

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_overtaken_marks_are_stale() {
        let (one, two) = (
            request(SESSION, 3, 5) + "0000000042",
            request(SESSION, 4, 5) + "0000000043",
        );
        let (four, three) = (left(&one, 4).unwrap(), left(&one, 3).unwrap());
        let gone = left(&(request(SESSION, 2, 5) + "0000000041"), 1).unwrap();
        let there = names(&[&one, &two, &four, &three, &gone]);
        let names = Names::read(&there).unwrap();
        let stale: Vec<_> = names.stale_marks(SESSION).collect();
        assert_eq!(stale, [&*four, &*gone]);
        let other = Session { client: 1, number: 1 };
        assert_eq!(names.stale_marks(other).count(), 0);
    }

    #[test]
    fn impossible_numbers_are_not_our_nodes() {
        assert_eq!(Name::parse(&(request(SESSION, 3, u64::MAX) + "0000000042")), None);
        assert_eq!(Name::parse(&(request(SESSION, 3, MAX_UNITS + 1) + "0000000042")), None);
        assert!(Name::parse(&(request(SESSION, 3, MAX_UNITS) + "0000000042")).is_some());
    }

    #[test]
    fn a_name_says_what_it_was_made_of() {
        let name = request(SESSION, 3, 5) + "0000000042";
        let read = Name::Request {
            session: SESSION,
            request: 3,
            units: 5,
            sequence: 42,
        };
        assert_eq!(Name::parse(&name), Some(read));
        assert_eq!(Name::parse(&present(SESSION)), Some(Name::Present(SESSION)));
        let mark = left(&name, 2).unwrap();
        assert_eq!(mark, "r-000000000000a1b2.7-2-0000000042");
        let read = Name::Left {
            session: SESSION,
            units: 2,
            sequence: 42,
        };
        assert_eq!(Name::parse(&mark), Some(read));
        // As servers print a number that has overflowed.
        let name = request(SESSION, 3, 5) + "-2147483648";
        assert!(matches!(
            Name::parse(&name),
            Some(Name::Request {
                sequence: -2_147_483_648,
                ..
            })
        ));
        assert_eq!(left(&name, 2).unwrap(), "r-000000000000a1b2.7-2--2147483648");
        for odd in [
            "",
            "s",
            "s-",
            "s-1",
            "s-zz.1",
            "w-1.1-1-1",
            "x-1.1",
            "lock",
            "w-1.1-a-1-0000000001",
            "s-1.1-1",
        ] {
            assert_eq!(Name::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_smallest_mark_says_what_is_left() {
        let names = names(&[
            "w-1.1-1-5-0000000009",
            "s-1.1",
            "r-1.1-2-0000000009",
            "r-1.1-4-0000000009",
            "w-2.1-1-3-0000000010",
        ]);
        let read = Names::read(&names).unwrap();
        let queue = read.queue(5, &HashMap::new(), false);
        assert_eq!((queue.usage().in_use, queue.usage().waiting), (5, 0));
    }

    #[test]
    fn numbers_that_begin_anew_are_noticed_and_then_transactions_count() {
        let names = names(&["w-1.1-1-1-2147483647", "w-1.1-2-1--2147483648", "w-1.1-3-1-0000000003"]);
        let read = Names::read(&names).unwrap();
        assert!(read.have_wrapped(-2_147_483_646) && read.have_wrapped(4));
        assert!(!Names::read(&names[2..]).unwrap().have_wrapped(4));
        let created = [(0, 70), (1, 71), (2, 90)].map(|(at, zxid): (usize, u64)| (Box::from(&*names[at]), zxid));
        let queue = read.queue(2, &created.into(), true);
        let held: Vec<_> = names.iter().map(|name| queue.is_held(name)).collect();
        assert_eq!(held, [true, true, false]);
    }
}
