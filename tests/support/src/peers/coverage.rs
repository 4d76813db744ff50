//! Chooses which cells of a matrix of real peers run: all of them in `make peers`; else every pair of a client and a server, of a
//! client and a case, and of a server and a case is in at least one cell that runs.

use std::collections::BTreeSet;
use std::env;

/// `1` runs every cell.
const VARIABLE: &str = "TASKGATE_PEERS_ALL";

/// A cell by the indices of its client, server and case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellIndex {
    pub client: usize,
    pub server: usize,
    pub case: usize,
}

/// How many clients, servers and cases a matrix has.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub clients: usize,
    pub servers: usize,
    pub cases: usize,
}

/// Two of a cell's three indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pair {
    ClientServer(usize, usize),
    ClientCase(usize, usize),
    ServerCase(usize, usize),
}

impl CellIndex {
    fn pairs(self) -> [Pair; 3] {
        [
            Pair::ClientServer(self.client, self.server),
            Pair::ClientCase(self.client, self.case),
            Pair::ServerCase(self.server, self.case),
        ]
    }
}

/// The cells of a matrix that run.
#[derive(Debug)]
pub struct Coverage(BTreeSet<CellIndex>);

impl Coverage {
    /// The cells that this process runs, of those that are possible.
    pub fn of(sizes: Sizes, is_possible: impl Fn(CellIndex) -> bool) -> Self {
        let possible = possible(sizes, is_possible);
        Self(if every_cell_runs() { possible.into_iter().collect() } else { pairwise(&possible) })
    }

    pub fn includes(&self, cell: CellIndex) -> bool {
        self.0.contains(&cell)
    }
}

/// Whether every cell runs.
pub fn every_cell_runs() -> bool {
    env::var(VARIABLE).is_ok_and(|value| value == "1")
}

fn possible(sizes: Sizes, is_possible: impl Fn(CellIndex) -> bool) -> Vec<CellIndex> {
    let mut cells = Vec::with_capacity(sizes.clients * sizes.servers * sizes.cases);
    for client in 0..sizes.clients {
        for server in 0..sizes.servers {
            cells.extend((0..sizes.cases).map(|case| CellIndex { client, server, case }));
        }
    }
    cells.retain(|cell| is_possible(*cell));
    cells
}

/// Cells with every pair that `possible` has: first those with three pairs that no other has yet, then two, then one.
fn pairwise(possible: &[CellIndex]) -> BTreeSet<CellIndex> {
    let (mut chosen, mut covered) = (BTreeSet::new(), BTreeSet::new());
    for new_pairs in [3, 2, 1] {
        for cell in possible {
            if cell.pairs().iter().filter(|pair| !covered.contains(*pair)).count() >= new_pairs {
                chosen.insert(*cell);
                covered.extend(cell.pairs());
            }
        }
    }
    chosen
}

/// Matrices of several sizes, whole and with gaps.
#[test]
fn every_pair_that_is_possible_runs_in_few_cells() {
    for (clients, servers, cases) in [(1, 1, 1), (6, 7, 9), (9, 3, 18), (6, 5, 15), (6, 2, 5), (2, 9, 4)] {
        let sizes = Sizes { clients, servers, cases };
        // How many of ten cells are left out.
        for gaps in [0, 1, 3, 6] {
            let noise = |cell: CellIndex| (cell.client * 31 + cell.server * 17 + cell.case * 7) * 2_654_435_761 % 10;
            let possible = possible(sizes, |cell| noise(cell) >= gaps);
            let chosen = pairwise(&possible);
            assert!(chosen.iter().all(|cell| possible.contains(cell)));
            let pairs = |cells: &mut dyn Iterator<Item = &CellIndex>| {
                cells.flat_map(|cell| cell.pairs()).collect::<BTreeSet<_>>()
            };
            assert_eq!(pairs(&mut chosen.iter()), pairs(&mut possible.iter()), "{sizes:?} with gaps of {gaps}");
            let at_least = [clients * servers, clients * cases, servers * cases].into_iter().max().unwrap();
            assert!(chosen.len() * 10 <= at_least * 12, "{sizes:?} with gaps of {gaps}: {} cells", chosen.len());
        }
    }
}
