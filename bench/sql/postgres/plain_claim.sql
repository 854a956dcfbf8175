-- Claims messages of the plain table. $1 how many
update plain set leased_until = now() + interval '30 seconds'
where id = any(array(
    select id from plain where leased_until is null
    order by id
    limit $1
    for update skip locked))
returning id, payload
