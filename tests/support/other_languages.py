"""Documents in German and Chinese, each with an answer that copies and paraphrases."""

GERMAN = [
    (
        "Die Werft am Nordufer wurde im Frühjahr 1894 gegründet und beschäftigte zunächst nur"
        " vierzig Leute. Sie bauten kleine Fischkutter aus Eichenholz, die wegen ihrer Festigkeit"
        " in allen Häfen der Küste geschätzt wurden. Nach dem großen Brand von 1911 musste der"
        " Betrieb völlig neu aufgebaut werden. Der Besitzer nutzte die Gelegenheit und schaffte"
        " Maschinen an, mit denen auch eiserne Rümpfe genietet werden konnten. In den zwanziger"
        " Jahren liefen hier jedes Jahr drei Frachtschiffe vom Stapel, und die Zahl der Arbeiter"
        " stieg auf über sechshundert. Erst die Wirtschaftskrise beendete den Aufschwung. Heute"
        " erinnert ein kleines Museum in der alten Schmiede an die Geschichte der Werft.",
        "Die Werft wurde im Frühjahr 1894 am Nordufer gegründet. Anfangs bauten vierzig Leute dort"
        " kleine Fischkutter aus Eichenholz. Nach dem Brand von 1911 wurde der Betrieb neu"
        " aufgebaut, und mit den neuen Maschinen konnten auch eiserne Rümpfe genietet werden. In"
        " den zwanziger Jahren arbeiteten dort über sechshundert Menschen, bis die Wirtschaftskrise"
        " den Aufschwung beendete. In der alten Schmiede befindet sich heute ein Museum.",
    ),
    (
        "Bienen verständigen sich über den Ort einer Futterquelle, indem sie auf der Wabe tanzen."
        " Liegt das Futter in der Nähe des Stockes, so läuft die Biene in engen Kreisen, und die"
        " anderen suchen in der Umgebung nach dem Duft, den sie mitgebracht hat. Ist die Quelle"
        " weiter entfernt, läuft sie ein Stück geradeaus, wackelt dabei mit dem Hinterleib und"
        " kehrt in einem Bogen zum Anfang zurück. Die Richtung der geraden Strecke gibt den Winkel"
        " zur Sonne an, und je langsamer der Tanz ist, desto weiter ist der Weg. Auch wenn Wolken"
        " den Himmel bedecken, finden die Tiere ihr Ziel, weil sie das Muster des polarisierten"
        " Lichtes wahrnehmen.",
        "Die Bienen teilen einander durch Tänze mit, wo es Futter gibt. Bei einer nahen Quelle"
        " laufen sie in engen Kreisen. Bei einer entfernten Quelle laufen sie geradeaus und wackeln"
        " dabei mit dem Hinterleib. Die Richtung der geraden Strecke zeigt den Winkel zur Sonne,"
        " und ein langsamer Tanz bedeutet einen weiten Weg. Selbst bei bedecktem Himmel finden sie"
        " ihr Ziel, da sie polarisiertes Licht wahrnehmen können.",
    ),
    (
        "Der Gemeinderat hat am Dienstag beschlossen, die alte Mühle am Bach zu kaufen und in ein"
        " Kulturzentrum umzubauen. Für den Kauf sind zweihunderttausend Euro vorgesehen, für den"
        " Umbau rechnet die Verwaltung mit weiteren neunhunderttausend. Die Hälfte davon soll das"
        " Land übernehmen, ein entsprechender Antrag wurde bereits gestellt. Gegen den Plan"
        " stimmten nur drei Mitglieder des Rates, die das Geld lieber für die Schule ausgegeben"
        " hätten. Der Bürgermeister erklärte, die Mühle sei das älteste Gebäude des Ortes und dürfe"
        " nicht verfallen. Die Arbeiten sollen im nächsten Sommer beginnen und zwei Jahre dauern.",
        "Der Gemeinderat will die alte Mühle am Bach kaufen und daraus ein Kulturzentrum machen."
        " Der Kauf kostet zweihunderttausend Euro, der Umbau vermutlich neunhunderttausend, wovon"
        " das Land die Hälfte übernehmen soll. Drei Mitglieder des Rates stimmten dagegen, weil sie"
        " das Geld lieber für die Schule ausgegeben hätten. Nach den Worten des Bürgermeisters darf"
        " das älteste Gebäude des Ortes nicht verfallen. Die Arbeiten beginnen im nächsten Sommer"
        " und dauern zwei Jahre.",
    ),
    (
        "Wer sein Fahrrad im Winter benutzt, sollte einige Dinge beachten. Vor allem muss die Kette"
        " öfter gereinigt und geölt werden, denn das Salz auf den Straßen lässt sie schnell rosten."
        " Die Reifen fahren sich auf Schnee besser, wenn man etwas Luft herauslässt. Bremsen"
        " sollte man früher und vorsichtiger als sonst, am besten mit dem Hinterrad, weil ein"
        " blockiertes Vorderrad fast immer zum Sturz führt. Die Beleuchtung gehört regelmäßig"
        " geprüft, da es morgens und abends dunkel ist. Ein Akku verliert in der Kälte einen Teil"
        " seiner Leistung und wird deshalb am besten in der Wohnung geladen und aufbewahrt.",
        "Im Winter sollte man die Kette öfter reinigen und ölen, weil das Salz sie rosten lässt."
        " Auf Schnee hilft es, etwas Luft aus den Reifen herauszulassen. Gebremst wird früher und"
        " vorsichtiger, am besten mit dem Hinterrad, denn ein blockiertes Vorderrad führt fast"
        " immer zum Sturz. Außerdem sollte die Beleuchtung regelmäßig geprüft werden. Der Akku wird"
        " am besten in der Wohnung geladen und aufbewahrt, da er in der Kälte Leistung verliert.",
    ),
]
CHINESE = [
    (
        "这座石桥建于明朝末年，横跨在小镇东边的河上，全长约六十米，共有七个桥孔。建桥的石料是从三十里外的"
        "山上用船运来的，当时动用了四百多名工匠，前后花了五年时间才完工。桥栏上雕刻着各种花鸟图案，每一块都"
        "不相同。两百多年前的一场洪水冲毁了西侧的两个桥孔，后来由当地的商人出资修复。现在这座桥只允许行人"
        "通过，汽车要走下游新建的公路桥。每年春天，镇上的人都会在桥上挂起红色的灯笼，举行热闹的庙会。",
        "这座石桥建于明朝末年，位于小镇东边，全长约六十米，有七个桥孔。建桥的石料是用船从三十里外的山上"
        "运来的，四百多名工匠花了五年时间才完工。后来一场洪水冲毁了西侧的两个桥孔，由当地的商人出资修复。"
        "现在桥上只允许行人通过，每年春天人们会在桥上挂起红色的灯笼，举行庙会。",
    ),
    (
        "研究人员在城市的十二个公园里观察了两年，记录了鸟类的数量和种类。结果发现，公园的面积并不是最重要的"
        "因素，树木的种类越多，鸟的种类也就越多。在只种草坪和少量观赏树的公园里，平均只有九种鸟；而在保留了"
        "灌木和老树的公园里，可以看到三十种以上。夜间的灯光也有影响，路灯太亮的地方，很多小鸟不愿意筑巢。"
        "研究人员建议，城市在建设公园时应当多种本地的树木，减少夜间照明，并且在秋天保留一部分落叶，因为落叶"
        "里的昆虫是鸟类过冬的重要食物。",
        "研究人员用两年时间观察了十二个公园里的鸟类。他们发现，树木的种类越多，鸟的种类也就越多，而公园的"
        "面积并不是最重要的因素。路灯太亮的地方，很多小鸟不愿意筑巢。研究人员建议城市多种本地的树木，减少"
        "夜间照明，并在秋天保留一部分落叶，因为里面的昆虫是鸟类过冬的重要食物。",
    ),
    (
        "图书馆从下个月开始实行新的借阅规定。每位读者一次最多可以借十本书，借期为四周，如果没有其他读者预约，"
        "可以续借一次。逾期不还的图书不再收取罚款，但是在归还之前不能再借新书。读者可以在网上预约想看的书，"
        "到馆以后会收到短信通知，请在五天之内来取。儿童阅览室周末的开放时间延长到晚上八点，家长可以陪同孩子"
        "一起阅读。另外，二楼新设了安静的自习区，共有六十个座位，使用前需要在门口的机器上登记。",
        "根据新的规定，每位读者一次最多可以借十本书，借期为四周，没有其他读者预约时可以续借一次。逾期不再"
        "收取罚款，但是在归还之前不能再借新书。读者可以在网上预约图书，收到短信通知后在五天之内来取。儿童"
        "阅览室周末开放到晚上八点，二楼新设的自习区共有六十个座位，使用前需要登记。",
    ),
    (
        "做这道菜需要一条新鲜的鱼、三片生姜、两根葱、一小碗黄豆酱和少量的糖。先把鱼洗干净，在两面各切几刀，"
        "抹上一点盐，放置二十分钟。锅里放油烧热，把鱼煎到两面金黄以后盛出来。用剩下的油炒香姜片和黄豆酱，"
        "加入一碗热水和糖，烧开以后把鱼放回锅里，盖上锅盖用小火煮十分钟。最后撒上葱花，让汤汁变浓就可以出锅。"
        "喜欢辣味的人可以在炒酱的时候放两个干辣椒。煎鱼的时候不要急着翻动，否则鱼皮容易破。",
        "先把鱼洗干净，在两面各切几刀，抹上盐放置二十分钟。然后在锅里把油烧热，把鱼煎到两面金黄后盛出来。"
        "再用剩下的油炒香姜片和黄豆酱，加入热水和糖，烧开以后放回鱼，用小火煮十分钟。最后撒上葱花，等汤汁"
        "变浓就可以出锅。煎鱼的时候不要急着翻动，喜欢辣味的人可以放两个干辣椒。",
    ),
]
