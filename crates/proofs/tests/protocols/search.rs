//! The search of a space, and its report.

use stateright::{Checker, HasDiscoveries, Model};
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

/// No space takes longer on two processors.
const LIMIT: Duration = Duration::from_secs(1_800);

/// Searches the whole space of `model`. Prints its size.
///
/// # Panics
/// When a property does not hold, with the actions to that state, and `why` it does not; or when the space is not exhausted within half
/// an hour.
pub(crate) fn exhaust<M>(name: &str, model: M, why: impl Fn(&M::State) -> Option<String>)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Hash + PartialEq + Send + Sync + Debug + 'static,
    M::Action: Send + Sync + Debug + Clone + PartialEq + 'static,
{
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures)
        .timeout(LIMIT)
        .spawn_dfs()
        .join();
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let (states, actions): (Vec<_>, Vec<_>) = path.into_vec().into_iter().unzip();
        let actions: Vec<_> = actions.into_iter().flatten().collect();
        let last = states.last().expect("a path has a state");
        let why = why(last).unwrap_or_default();
        panic!("{name}: not true: {property}\nafter {actions:?}\n{why}\n{last:?}");
    }
    let size = format!(
        "{} states, {} steps, {} deep, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64()
    );
    assert!(
        checker.is_done() && begun.elapsed() < LIMIT,
        "{name}: not exhausted within {LIMIT:?}: {size}"
    );
    println!("space {name}: {size}");
}

/// Searches the whole space of `model`, and shows that states which are taken for one are alike: the properties say the same of them,
/// and each step leads from one of them to what a step from the other leads to.
pub(crate) fn are_alike<M>(name: &str, model: &M)
where
    M: Model,
    M::State: Hash + Debug,
{
    let key = |state: &M::State| {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    let properties = model.properties();
    let mut known = HashMap::new();
    let mut pending = model.init_states();
    let mut steps = 0;
    while let Some(state) = pending.pop() {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        let next = actions
            .into_iter()
            .filter_map(|action| model.next_state(&state, action));
        let next: Vec<_> = next.map(|state| (key(&state), state)).collect();
        let says: Vec<_> = properties
            .iter()
            .map(|property| (property.condition)(model, &state))
            .collect();
        let here = key(&state);
        let mut keys: Vec<_> = next.iter().map(|(key, _)| *key).filter(|key| *key != here).collect();
        keys.sort_unstable();
        keys.dedup();
        steps += next.len();
        match known.entry(here) {
            Entry::Occupied(alike) => assert!(*alike.get() == (says, keys), "{name}: not alike: {state:?}"),
            Entry::Vacant(new) => {
                new.insert((says, keys));
                pending.extend(next.into_iter().map(|(_, state)| state));
            }
        }
    }
    println!("alike {name}: {} states, {steps} steps compared", known.len());
}
