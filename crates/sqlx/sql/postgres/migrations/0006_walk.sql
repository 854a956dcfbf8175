-- Until when claims go from key to key, because walking over what waits for its turn took long. Empty at other times.
create table /*:*/outbox_walk (
    one             boolean primary key default true check (one),
    again_at        timestamptz not null,            -- when to walk over everything again
    last_key        text collate "C" not null default ''  -- how far the last claim came
);

-- Every priority that claims have walked far in has a mark of its own.
alter table /*:*/outbox_mark drop column if exists clear_until;

-- Answers whole rows now, and a function's answer cannot be replaced.
drop function if exists /*:*/claim_all(text, bigint, interval, text[], text[]);
