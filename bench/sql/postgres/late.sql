-- What this database has been through: transactions, blocks touched, rows changed, and how many of them within their page.
select d.xact_commit::float8, (d.blks_hit + d.blks_read)::float8,
       t.updated::float8, t.deleted::float8, t.hot::float8
from pg_stat_database d,
     (select coalesce(sum(n_tup_upd), 0) as updated, coalesce(sum(n_tup_del), 0) as deleted,
             coalesce(sum(n_tup_hot_upd), 0) as hot
      from pg_stat_user_tables) t
where d.datname = current_database()
