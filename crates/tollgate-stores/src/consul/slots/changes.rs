//! The keys of a limiter with slots, and the operations that change them. No I/O.

use super::view::{Bound, Change, Leaving, Limit, Slot};
use crate::consul::kv::Op;
use tollgate::remote::{Session, StoreError};

/// The place of a limiter's keys.
pub(super) struct Place(pub(super) String);

impl Place {
    fn limit(&self) -> String {
        format!("{}at/limit", self.0)
    }

    fn slot(&self, number: u64) -> String {
        format!("{}at/{number:03}", self.0)
    }

    /// Wakes all waiters for slots, and collides with none of them.
    fn ring(&self) -> [Op; 2] {
        let bell = format!("{}at/bell", self.0);
        [Op::set(&bell, b""), Op::delete(&bell)]
    }

    pub(super) fn life(&self, session: Session) -> String {
        format!("{}by/{session}", self.0)
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Refused {
        why: error.to_string().into(),
    })
}

/// The operations of a change. Nothing else is written with `nonce`.
pub(super) fn ops(
    place: &Place,
    change: &Change,
    session: Session,
    id: &str,
    nonce: String,
) -> Result<Vec<Op>, StoreError> {
    let life = json(&change.life)?;
    let mut ops = vec![match change.replaces {
        Some(index) => Op::cas(&place.life(session), &life, index),
        None => Op::lock(&place.life(session), &life, id),
    }];
    match change.bound {
        Bound::Any => {}
        Bound::Same(index) => ops.push(Op::check_index(&place.limit(), index)),
        Bound::Set(limit, index) => {
            ops.push(Op::cas(&place.limit(), &json(&Limit { limit, nonce })?, index));
        }
    }
    ops.extend(change.freed.iter().map(|&number| Op::delete(&place.slot(number))));
    if change.rings {
        ops.extend(place.ring());
    }
    let slot = json(&Slot {
        request: change.request,
    })?;
    ops.extend(
        change
            .locked
            .iter()
            .map(|&number| Op::lock(&place.slot(number), &slot, id)),
    );
    Ok(ops)
}

/// The operations of an end.
pub(super) fn ops_of_leaving(place: &Place, leaving: &Leaving, session: Session, id: &str) -> Vec<Op> {
    let life = place.life(session);
    // Consul reports success for the deletion of a missing key: so a late end would delete what others hold.
    let mut ops = vec![Op::check_session(&life, id), Op::delete_cas(&life, leaving.life)];
    if let Some((name, id)) = &leaving.other {
        ops.push(Op::check_session(&format!("{}by/{name}", place.0), id));
    }
    ops.extend(leaving.slots.iter().map(|&number| Op::delete(&place.slot(number))));
    ops.extend(leaving.limit.map(|index| Op::delete_cas(&place.limit(), index)));
    if leaving.rings {
        ops.extend(place.ring());
    }
    ops
}
