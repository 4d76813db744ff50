//! Tests one replica's cases, then random runs of several replicas with store outages.

use proptest::prelude::*;

use super::*;

const OWN: Incarnation = Incarnation(1);
const OTHER: Incarnation = Incarnation(2);
const GENERATION: StoreGeneration = StoreGeneration(7);
const SECOND: u64 = 1_000;

const fn at(millis: u64) -> BootTime {
    BootTime(Duration::from_millis(millis))
}

fn terms(lease: u64, alone_max: u64) -> LeaseTerms {
    let of = Duration::from_secs;
    LeaseTerms::new(of(lease), of(alone_max)).expect("the lease is within its bounds")
}

fn member() -> Membership {
    Membership::registered(terms(8, 300), OWN, GENERATION, at(0), at(0))
}

fn row(incarnation: Incarnation, heartbeat: u64) -> ReplicaRow {
    ReplicaRow {
        incarnation,
        name: format!("replica {incarnation}"),
        address: None,
        heartbeat,
        now: Timestamp::from_millis(1_000_000 + heartbeat),
        is_leaving: false,
        is_dead: false,
        record_reads: 5,
    }
}

fn look(millis: u64, rows: &[ReplicaRow]) -> ReplicaLook {
    ReplicaLook { sent: at(millis), received: at(millis), rows: rows.to_vec() }
}

/// Sends a heartbeat every two seconds, all acknowledged, with looks that show the other's heartbeat as given.
fn beat_and_look(
    membership: &mut Membership,
    seconds: std::ops::Range<u64>,
    heartbeat_of_other: u64,
) -> Vec<DeathClaim> {
    let mut claims = Vec::new();
    for second in seconds {
        if second % 2 == 0 {
            let heartbeat = membership.acknowledged.heartbeat + 1;
            let answer = HeartbeatAnswer::Acknowledged { heartbeat, generation: GENERATION };
            membership.heartbeat_answered(answer, at(second * SECOND), at(second * SECOND));
        }
        claims.extend(membership.apply_look(look(second * SECOND, &[row(OTHER, heartbeat_of_other)])));
    }
    claims
}

#[test]
fn the_lease_has_bounds_and_parts() {
    let of = Duration::from_millis;
    for (lease, is_within) in [(3_999, false), (4_000, true), (60_000, true), (60_001, false)] {
        assert_eq!(LeaseTerms::new(of(lease), of(0)).is_some(), is_within, "{lease} ms");
    }
    let terms = terms(8, 300);
    assert_eq!((terms.heartbeat_interval(), terms.gap_max(), terms.insert_max()), (of(2_000), of(4_000), of(7_000)));
}

#[test]
fn a_longer_lease_is_not_silent_for_those_with_the_usual_one() {
    let usual = LeaseTerms::default();
    let longest = terms(60, 300);
    assert_eq!(terms(4, 300).heartbeat_interval(), Duration::from_secs(1));
    assert!(longest.heartbeat_interval() * 2 + LOOK_EVERY < usual.lease(), "a beat that is lost is no silence");
}

#[test]
fn a_heartbeat_that_stays_for_the_lease_is_claimed_with_that_beat() {
    let mut membership = member();
    assert_eq!(beat_and_look(&mut membership, 1..9, 5), []);
    assert_eq!(beat_and_look(&mut membership, 9..10, 5), [DeathClaim { incarnation: OTHER, heartbeat: 5 }]);
    // A heartbeat arrived in between: no claim, and the window restarts.
    assert_eq!(beat_and_look(&mut membership, 10..18, 6), []);
    assert_eq!(beat_and_look(&mut membership, 18..19, 6), [DeathClaim { incarnation: OTHER, heartbeat: 6 }]);
}

#[test]
fn a_heartbeat_that_went_back_is_a_new_one() {
    let mut membership = member();
    assert_eq!(beat_and_look(&mut membership, 1..9, 5), []);
    assert_eq!(beat_and_look(&mut membership, 9..17, 4), []);
    assert_eq!(beat_and_look(&mut membership, 17..18, 4), [DeathClaim { incarnation: OTHER, heartbeat: 4 }]);
}

#[test]
fn an_observer_whose_own_heartbeats_stay_unanswered_declares_no_death() {
    let mut membership = member();
    assert_eq!(beat_and_look(&mut membership, 1..5, 5), []);
    for second in 5..60 {
        assert_eq!(membership.apply_look(look(second * SECOND, &[row(OTHER, 5)])), []);
    }
    // Writes succeed after 56 s: the first window has its maximum length.
    assert_eq!(beat_and_look(&mut membership, 60..90, 5), []);
    assert_eq!(beat_and_look(&mut membership, 90..91, 5), [DeathClaim { incarnation: OTHER, heartbeat: 5 }]);
}

#[test]
fn a_window_after_an_outage_is_as_long_as_that_once() {
    let mut membership = member();
    assert_eq!(beat_and_look(&mut membership, 1..5, 5), []);
    // An outage from 4 to 20. The other's heartbeat came just before, and is seen only now: it proves nothing about the time
    // after.
    assert_eq!(beat_and_look(&mut membership, 20..36, 6), []);
    assert_eq!(beat_and_look(&mut membership, 36..37, 6), [DeathClaim { incarnation: OTHER, heartbeat: 6 }]);
    assert_eq!(beat_and_look(&mut membership, 37..45, 7), []);
    assert_eq!(beat_and_look(&mut membership, 45..46, 7), [DeathClaim { incarnation: OTHER, heartbeat: 7 }]);
}

#[test]
fn a_look_of_before_the_end_of_an_outage_begins_no_window() {
    let mut membership = member();
    assert_eq!(beat_and_look(&mut membership, 1..5, 5), []);
    let answer = HeartbeatAnswer::Acknowledged { heartbeat: 9, generation: GENERATION };
    membership.heartbeat_answered(answer, at(20_000), at(20_000));
    let earlier = ReplicaLook { sent: at(19_800), received: at(19_900), rows: vec![row(OTHER, 5)] };
    assert_eq!(membership.apply_look(earlier), []);
    assert_eq!(beat_and_look(&mut membership, 21..37, 5), []);
    assert_eq!(beat_and_look(&mut membership, 37..38, 5), [DeathClaim { incarnation: OTHER, heartbeat: 5 }]);
}

#[test]
fn a_look_that_was_answered_late_is_judged_by_when_it_was_sent() {
    let mut membership = member();
    assert_eq!(beat_and_look(&mut membership, 1..8, 5), []);
    let answer = HeartbeatAnswer::Acknowledged { heartbeat: 9, generation: GENERATION };
    membership.heartbeat_answered(answer, at(9_000), at(9_000));
    let late = ReplicaLook { sent: at(8_500), received: at(12_000), rows: vec![row(OTHER, 5)] };
    assert_eq!(membership.apply_look(late), []);
    // An older one that arrives even later has no effect.
    let older = ReplicaLook { sent: at(8_400), received: at(12_500), rows: vec![] };
    assert_eq!(membership.apply_look(older), []);
    assert_eq!(membership.living_others().count(), 1);
}

#[test]
fn a_replica_ends_when_its_heartbeats_are_unanswered_for_too_long() {
    let mut membership = member();
    let answer = HeartbeatAnswer::Acknowledged { heartbeat: 1, generation: GENERATION };
    // It counts from when the heartbeat was sent.
    membership.heartbeat_answered(answer, at(2_000), at(3_500));
    let rows = [(9_000, OwnStanding::Member), (301_999, OwnStanding::Member), (302_000, OwnStanding::Fenced)];
    for (millis, expected) in rows {
        assert_eq!(membership.standing(at(millis)), expected, "after {millis} ms");
    }
    assert_eq!(membership.alone_for(at(9_000)), Duration::from_secs(7));
    // The store is back within that time, and no replica has taken over.
    membership.heartbeat_answered(
        HeartbeatAnswer::Acknowledged { heartbeat: 2, generation: GENERATION },
        at(200_000),
        at(200_001),
    );
    assert_eq!(membership.standing(at(200_002)), OwnStanding::Member);
    // It was paused for longer, and its first heartbeat finds its row alive, as there was no other replica.
    membership.heartbeat_answered(
        HeartbeatAnswer::Acknowledged { heartbeat: 3, generation: GENERATION },
        at(600_000),
        at(600_001),
    );
    assert_eq!(membership.standing(at(600_002)), OwnStanding::Fenced);
}

#[test]
fn a_heartbeat_says_whether_the_replica_was_replaced_or_the_store_has_lost_something() {
    let other = StoreGeneration(8);
    let rows = [
        (HeartbeatAnswer::Acknowledged { heartbeat: 3, generation: GENERATION }, OwnStanding::Member),
        // One in between had an unknown commit, and was committed.
        (HeartbeatAnswer::Acknowledged { heartbeat: 4, generation: GENERATION }, OwnStanding::Member),
        (HeartbeatAnswer::Dead { heartbeat: 2 }, OwnStanding::Fenced),
        // One with an unknown commit is in the row.
        (HeartbeatAnswer::Dead { heartbeat: 3 }, OwnStanding::Fenced),
        (
            HeartbeatAnswer::Dead { heartbeat: 1 },
            OwnStanding::StoreLost(StoreLoss::HeartbeatWentBack { acknowledged: 2, found: 1 }),
        ),
        (HeartbeatAnswer::Missing, OwnStanding::StoreLost(StoreLoss::RowMissing)),
        (
            HeartbeatAnswer::Acknowledged { heartbeat: 2, generation: GENERATION },
            OwnStanding::StoreLost(StoreLoss::HeartbeatWentBack { acknowledged: 2, found: 2 }),
        ),
        (
            HeartbeatAnswer::Acknowledged { heartbeat: 3, generation: other },
            OwnStanding::StoreLost(StoreLoss::OtherGeneration(other)),
        ),
    ];
    for (answer, expected) in rows {
        let mut membership = member();
        membership.heartbeat_answered(
            HeartbeatAnswer::Acknowledged { heartbeat: 2, generation: GENERATION },
            at(1),
            at(1),
        );
        membership.heartbeat_answered(answer, at(2_000), at(2_000));
        assert_eq!(membership.standing(at(2_000)), expected, "{answer:?}");
        membership.heartbeat_answered(
            HeartbeatAnswer::Acknowledged { heartbeat: 9, generation: GENERATION },
            at(3_000),
            at(3_000),
        );
        assert_eq!(membership.standing(at(3_000)), expected, "{answer:?}");
    }
}

#[test]
fn a_look_shows_a_replica_that_it_is_dead() {
    let mut membership = member();
    let own = ReplicaRow { is_dead: true, ..row(OWN, 0) };
    assert_eq!(membership.apply_look(look(10, &[own.clone(), row(OTHER, 1)])), []);
    assert_eq!(membership.standing(at(10)), OwnStanding::Fenced);
    // A row without an acknowledged heartbeat is left to the next heartbeat.
    let mut membership = member();
    membership.heartbeat_answered(HeartbeatAnswer::Acknowledged { heartbeat: 1, generation: GENERATION }, at(1), at(1));
    membership.apply_look(look(10, &[own, row(OTHER, 1)]));
    assert_eq!(membership.standing(at(10)), OwnStanding::Member);
}

#[test]
fn the_living_are_told_from_the_dead() {
    let mut membership = member();
    let leaving = ReplicaRow { is_leaving: true, record_reads: 3, ..row(Incarnation(4), 1) };
    let dead =
        ReplicaRow { is_dead: true, record_reads: 1, now: Timestamp::from_millis(1 << 40), ..row(Incarnation(5), 1) };
    let rows = [row(OWN, 0), row(OTHER, 9), row(Incarnation(3), 1), leaving, dead];
    assert_eq!(membership.apply_look(look(10, &rows)), []);
    assert_eq!(membership.highest_now(), Some(Timestamp::from_millis(1_000_009)));
    assert_eq!(membership.living_others().count(), 3);
    assert_eq!(membership.abandoned(at(10)).count(), 0);
    assert_eq!(membership.abandoned(at(10 + 300_000)).collect::<Vec<_>>(), [Incarnation(5)]);
}

const STEP: u64 = 50;
/// Maximum duration and delay of a heartbeat or look, and the wait between two tries.
const DELAY_MAX: u64 = 200;
const RETRY_MAX: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
struct Outage {
    begin: u64,
    length: u64,
    /// The replica that it cuts off; `None` for all.
    of: Option<usize>,
}

impl Outage {
    fn covers(self, replica: usize, now: u64) -> bool {
        self.of.is_none_or(|of| of == replica) && (self.begin..self.begin + self.length).contains(&now)
    }
}

struct Member {
    membership: Membership,
    next_beat: u64,
    next_look: u64,
    last_beat: u64,
}

/// Three replicas on one store; the last may be killed.
struct Run {
    terms: LeaseTerms,
    outages: Vec<Outage>,
    killed: Option<u64>,
    delays: Vec<u64>,
    drawn: usize,
    rows: Vec<ReplicaRow>,
    members: Vec<Member>,
    /// The claimant, the claimed replica, and the time.
    claims: Vec<(usize, usize, u64)>,
}

impl Run {
    const KILLED: usize = 2;

    fn new(lease: u64, outages: Vec<Outage>, killed: Option<u64>, delays: Vec<u64>) -> Self {
        let terms = terms(lease, 3_600);
        let incarnation = |n| Incarnation(n as u64);
        let member = |n| Member {
            membership: Membership::registered(terms, incarnation(n), GENERATION, at(0), at(0)),
            next_beat: n as u64 * 300,
            next_look: n as u64 * 150,
            last_beat: 0,
        };
        let rows = (0..3).map(|n| row(incarnation(n), 0)).collect();
        Self { terms, outages, killed, delays, drawn: 0, rows, members: (0..3).map(member).collect(), claims: vec![] }
    }

    fn delay(&mut self, max: u64) -> u64 {
        self.drawn += 1;
        self.delays[self.drawn % self.delays.len()] * 31 * self.drawn as u64 % (max + 1)
    }

    fn is_cut_off(&self, n: usize, now: u64) -> bool {
        self.outages.iter().any(|outage| outage.covers(n, now))
    }

    fn run(mut self, length: u64) -> Self {
        for now in (0..length).step_by(STEP as usize) {
            for n in 0..self.members.len() {
                if n == Self::KILLED && self.killed.is_some_and(|killed| now >= killed) {
                    continue;
                }
                if now >= self.members[n].next_beat {
                    self.heartbeat(n, now);
                }
                if now >= self.members[n].next_look {
                    self.look(n, now);
                }
            }
        }
        self
    }

    fn heartbeat(&mut self, n: usize, now: u64) {
        if self.is_cut_off(n, now) {
            self.members[n].next_beat = now + 100 + self.delay(RETRY_MAX - 100);
            return;
        }
        let (took, late) = (self.delay(DELAY_MAX), self.delay(DELAY_MAX));
        self.rows[n].heartbeat += 1;
        let answer = HeartbeatAnswer::Acknowledged { heartbeat: self.rows[n].heartbeat, generation: GENERATION };
        let member = &mut self.members[n];
        member.membership.heartbeat_answered(answer, at(now), at(now + took));
        member.next_beat = now + self.terms.heartbeat_interval().as_millis() as u64 + late;
        member.last_beat = now;
    }

    fn look(&mut self, n: usize, now: u64) {
        let (took, late) = (self.delay(DELAY_MAX), self.delay(DELAY_MAX));
        self.members[n].next_look = now + LOOK_EVERY.as_millis() as u64 + late;
        if self.is_cut_off(n, now) {
            return;
        }
        let look = ReplicaLook { sent: at(now), received: at(now + took), rows: self.rows.clone() };
        for claim in self.members[n].membership.apply_look(look) {
            let claimed = claim.incarnation.0 as usize;
            assert_eq!(claim.heartbeat, self.rows[claimed].heartbeat, "it is made under the beat that was seen");
            self.claims.push((n, claimed, now));
        }
    }
}

fn outage() -> impl Strategy<Value = Outage> {
    (10_000_u64..200_000, 100_u64..90_000, prop::option::of(0_usize..3)).prop_map(|(begin, length, of)| Outage {
        begin,
        length,
        of,
    })
}

#[test]
fn an_outage_right_behind_a_longer_one_shortens_no_window() {
    let outages =
        vec![Outage { begin: 23_356, length: 83_345, of: None }, Outage { begin: 107_001, length: 1_700, of: None }];
    let run = Run::new(4, outages, Some(91_901), vec![11, 3_033, 4_350, 6_791, 5_036, 3_627, 1_634]).run(500_000);
    assert!(run.claims.iter().all(|(.., when)| *when >= 106_701 + 30_000), "{:?}", run.claims);
    assert!(!run.claims.is_empty());
}

fn delays() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0_u64..10_000, 7..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_replica_that_sends_heartbeats_is_never_claimed_and_a_killed_one_within_the_lease(
        lease in 4_u64..=60, killed in 10_000_u64..60_000, delays in delays(),
    ) {
        let run = Run::new(lease, vec![], Some(killed), delays).run(200_000);
        prop_assert!(run.claims.iter().all(|(_, claimed, _)| *claimed == Run::KILLED), "{:?}", run.claims);
        let look = LOOK_EVERY.as_millis() as u64 + DELAY_MAX + STEP;
        let last_beat = run.members[Run::KILLED].last_beat;
        for observer in 0..2 {
            let first = run.claims.iter().find(|(by, ..)| *by == observer).map(|(.., when)| *when);
            let first = first.expect("it is claimed by each");
            let most = last_beat + lease * SECOND + 2 * look + DELAY_MAX;
            let heartbeat = run.terms.heartbeat_interval().as_millis() as u64;
            prop_assert!(first <= most && first <= killed + lease * SECOND + heartbeat.max(look) + look + DELAY_MAX);
            prop_assert!(first >= last_beat + lease * SECOND);
        }
    }

    #[test]
    fn after_an_outage_of_the_store_no_death_is_declared_before_a_whole_new_window(
        lease in 4_u64..=60,
        outages in prop::collection::vec(outage(), 1..4),
        killed in prop::option::of(10_000_u64..300_000),
        delays in delays(),
    ) {
        let run = Run::new(lease, outages, killed, delays).run(500_000);
        let gap_max = run.terms.gap_max().as_millis() as u64;
        for (by, claimed, when) in &run.claims {
            let own = run.outages.iter().filter(|outage| outage.of.is_none_or(|of| of == *by));
            // A shorter one is no outage for a replica with heartbeats just before and after it.
            for outage in own.filter(|outage| outage.length > gap_max) {
                let window = (lease * SECOND).max(outage.length.min(30 * SECOND));
                let end = outage.begin + outage.length;
                prop_assert!(*when < outage.begin || *when >= end + lease * SECOND, "{by} claimed {claimed} at {when}");
                // The long window applies to a replica without a heartbeat since.
                let has_heartbeat = run.members[*claimed].last_beat >= end;
                prop_assert!(*when < outage.begin || has_heartbeat || *when >= end + window, "{by} claimed {claimed} at {when}");
            }
            // A replica without an outage, or with the observer's outages only, is not claimed.
            let was_away = run.outages.iter().any(|outage| outage.of == Some(*claimed));
            let is_dead = *claimed == Run::KILLED && run.killed.is_some();
            prop_assert!(was_away || is_dead, "{by} claimed {claimed} at {when}");
        }
    }
}
