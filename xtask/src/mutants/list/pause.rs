//! Mutants of pauses, examinations and holders: statements, dispatcher. Nothing but the list; those of the core are last.

use super::{Mutant, Program};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "pause-suspect-postgres",
        why: "a suspect is delivered although its topic is paused",
        file: "crates/sqlx/sql/postgres/routines/claim.sql",
        original: "      and not (o.topic = any($5) or o.topic ^@ any($6))\n      and (o.key is null or (\n          select true from",
        mutated: "      and (o.key is null or (\n          select true from",
        program: Program::Stores,
        killers: "test(=postgres::pause::suspects_are_paused)",
    },
    Mutant {
        name: "pause-case-sqlite",
        why: "a pause holds for topics that differ in case",
        file: "crates/sqlx/sql/sqlite/migrations/0004_pause.sql",
        original: "topics          text primary key not null",
        mutated: "topics          text collate nocase primary key not null",
        program: Program::Stores,
        killers: "test(=sqlite::pause::names_are_bytes)",
    },
    Mutant {
        name: "pause-empty-mysql",
        why: "what is paused is claimed",
        file: "crates/sqlx/sql/mysql/routines/claim.sql",
        original: "select max(1) into v_paused from /*:*/outbox_pause;",
        mutated: "select max(1) into v_paused from /*:*/outbox_pause where false;",
        program: Program::Stores,
        killers: "test(=mysql::pause::paused_is_not_claimed)",
    },
    Mutant {
        name: "pause-twice-mysql",
        why: "a second pause is said to be new, or fails",
        file: "crates/sqlx/sql/mysql/routines/pause.sql",
        original: "declare continue handler for 1062 set v_new = false;",
        mutated: "declare continue handler for 1062 set v_new = true;",
        program: Program::Stores,
        killers: "test(=mysql::pause::twice_is_once)",
    },
    Mutant {
        name: "pause-hot",
        why: "what comes from memory is delivered although it is paused",
        file: "crates/core/src/dispatch.rs",
        original: "            Admission::Paused => self.release(lease),\n            Admission::Unknown => self.pauses",
        mutated: "            Admission::Paused => self.executor.enqueue(lease, Path::Hot),\n            Admission::Unknown => self.pauses",
        program: Program::Runtime,
        killers: "test(=pause::the_hot_path_obeys)",
    },
    Mutant {
        name: "pause-unknown",
        why: "a message is delivered from memory while nobody knows whether it is paused",
        file: "crates/core/src/dispatch/pauses.rs",
        original: "if self.known.is_none_or(|known| now >= known + HOLDS_FOR) {",
        mutated: "if self.known.is_some_and(|known| now >= known + HOLDS_FOR) {",
        program: Program::Runtime,
        killers: "test(=pause::the_first_answer_is_waited_for) | test(=pause::without_an_answer_a_claim_decides)",
    },
    Mutant {
        name: "pause-look",
        why: "what was released because nobody could tell waits for the next poll",
        file: "crates/core/src/dispatch/settler.rs",
        original: "self.aftermath.look_at_once |= decided.then_look;",
        mutated: "self.aftermath.look_at_once |= decided.then_look && answer == Settled::Gone;",
        program: Program::Runtime,
        killers: "test(=pause::without_an_answer_a_claim_decides)",
    },
];
