-- The statements that give back the rights on our procedures, one a row, as they are granted now.
-- schema or null, prefix
select cast(concat(
           'grant ',
           concat_ws(', ', if(find_in_set('Execute', p.proc_priv), 'execute', null),
                     if(find_in_set('Alter Routine', p.proc_priv), 'alter routine', null)),
           ' on procedure `', p.db, '`.`', p.routine_name, '` to ', quote(p.user), '@', quote(p.host),
           if(find_in_set('Grant', p.proc_priv), ' with grant option', '')) as char)
from mysql.procs_priv p
join (select ? as schema_name, ? as prefix) our
where p.db = coalesce(our.schema_name, database()) and p.routine_type = 'PROCEDURE'
  and left(p.routine_name, char_length(our.prefix)) = our.prefix
  and (find_in_set('Execute', p.proc_priv) or find_in_set('Alter Routine', p.proc_priv))
order by p.routine_name, p.user, p.host
